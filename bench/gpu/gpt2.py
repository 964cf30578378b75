"""How many tokens a second GPT-2 124M learns from on one GPU, against nanoGPT's way, in turns.

    .venv/bench/bin/python bench/gpu/gpt2.py [--rounds 8] [--device cuda] [--smoke] [--json FILE]

All sides are compiled, in bf16 where the GPU has it, with fused AdamW and the same batches of half a million tokens, in as
few parts as fit its memory. nanoGPT's own model has no biases; the row that is like for like has Slipway's model in
nanoGPT's loop. The last row is the preset with the vocabulary that it has by itself, 50257.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

import torch
from gpt_sides import Size, choose_size, make_text, slipway
from ground import DTYPES, blocks, describe, differ, read_ground, rows, speed, warmed
from loops import Loop
from nanogpt import NanoGpt, Shape, Training
from report import Report
from shares import best_product, bound, find_shares, table
from sides import Cost, ratio, take_turns

from slipway.train.loop.arithmetic import read_precision
from slipway.train.models.flops import utilisation
from slipway.train.models.gpt import Gpt, GptConfig

OURS, PEER, ALIKE = "slipway", "nanoGPT", "slipway's model in nanoGPT's loop"
PRESET = "slipway, vocabulary 50257"
LEAST = 470e3  # tokens a second on an H100 or H200
FASTER, ALIKE_FASTER, CLOSE = 1.2, 0.99, 0.01
STEPS = 3  # in a block


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    if (options := read_ground(__doc__)) is None:
        return 0
    size = choose_size(options.device, options.smoke)
    report = Report(
        "GPT-2 124M on one GPU",
        f"{describe(options.device)}; {size.batch} × {size.context} tokens a step in {size.parts} parts.",
        options,
    )
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(options, size, Path(folder))
        steps = 1 if options.smoke else STEPS
        turns = blocks(options.device, {name: side.take for name, side in sides.items()}, steps)
        costs = take_turns(warmed(turns, report), options.rounds)
        losses = {name: side.loss for name, side in sides.items()}
        columns = ["side", "tokens a second", "CPU s of a turn", "loss in the end"]
        report.table("Tokens a second", columns, rows(costs, size.tokens * steps, losses))
        ours = sides[OURS]
        assert isinstance(ours, Loop)
        why = explain(report, ours, steps)
        judge(report, costs, size.tokens * steps, why)
        if share := utilisation(
            ours.training.task.flops_per_unit * speed(costs[OURS], size.tokens * steps).median, options.device
        ):
            report.note(f"slipway makes use of {share:.1%} of what the data sheet says that this GPU could do.")
        report.target("losses, apart by", differ({name: losses[name] for name in (OURS, PEER, ALIKE)}), CLOSE, "of ours",
                      at_most=True)  # fmt: skip
    return report.close()


def make_sides(options: argparse.Namespace, size: Size, folder: Path) -> dict[str, Loop | Training]:
    """All sides, before their first step."""
    device, text = options.device, make_text(folder, size)
    dtype = DTYPES[read_precision("auto", device).name]
    ours = slipway(size, text, device, folder, log(options))
    unpadded = slipway(replace(size, vocabulary=size.text), text, device, folder, log(options))
    shape = Shape(size.layers, size.heads, size.embed, size.context, size.vocabulary)
    torch.manual_seed(0)
    theirs = NanoGpt(shape).to(device)
    alike = Gpt(GptConfig(size.layers, size.heads, size.embed, size.context, size.vocabulary)).to(device)
    alike.load_state_dict(ours.training.task.model.state_dict())
    peers = {
        name: Training(model, text, size.context, size.batch, size.parts, ours.rate, device, dtype)
        for name, model in ((PEER, theirs), (ALIKE, alike))
    }
    return {OURS: ours, **peers, PRESET: unpadded}


def log(options: argparse.Namespace) -> list[str]:
    """A line of progress at the end of each block, where nanoGPT reads its loss, too."""
    return ["--log-every", "1" if options.smoke else str(STEPS)]


def explain(report: Report, ours: Loop, steps: int) -> str:
    """Say where a step's time goes. Returns what bounds it, in words."""
    device, smoke = report.options.device, report.options.smoke
    found = find_shares(device, partial(ours.take, steps))
    report.table("Where slipway's step goes, profiled", ["kind", "ms a step", "share"], table(found, steps))
    dtype = DTYPES[read_precision("auto", device).name] or torch.float32
    product = best_product(device, dtype, *((64, 1) if smoke else ()))
    limit = product.median / ours.training.task.flops_per_unit
    report.note(
        f"A product of large matrices reaches {product.median / 1e12:.0f} TFLOP/s here; a training that did nothing else "
        f"would learn from {limit / 1e3:.0f} k tokens a second."
    )
    return (
        f"{bound(found)[1]}; {limit / 1e3:.0f} k tokens a second are what products of large matrices would allow here"
    )


def judge(report: Report, costs: Mapping[str, Sequence[Cost]], tokens: float, why: str) -> None:
    """Compare with what is to be reached."""
    report.target("slipway", speed(costs[OURS], tokens), LEAST, "tokens a second", reason=why)
    report.target(f"slipway / {PEER}", ratio(costs[PEER], costs[OURS]), FASTER, reason=why)
    report.target(f"slipway / {ALIKE}, like for like", ratio(costs[ALIKE], costs[OURS]), ALIKE_FASTER, reason=why)
    kept = ratio(costs[OURS], costs[PRESET])
    report.note(f"With the vocabulary of 50257 it has {kept} of that speed.")


if __name__ == "__main__":
    sys.exit(main())
