"""What DistributedDataParallel costs a single process on one GPU, against training without it, in turns.

    .venv/bench/bin/python bench/gpu/ddp_of_one.py [--rounds 8] [--device cuda] [--smoke] [--json FILE]

Nothing travels: what is measured is what several GPUs pay before anything does, which is buckets, copies into them, NCCL's
kernels, and the parts into which a compiled model is cut so that gradients can leave while others are still computed.
GPT-2 124M, compiled, with an exchange at every part of a batch, which is the worst case. `slipway` itself leaves DDP out
where there is one process; here it is put in by hand, as it is for several.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

from gpt_sides import Size, choose_size, make_text, slipway
from ground import blocks, describe, differ, read_ground, rows, warmed
from loops import Loop, group_of_one
from report import Report
from sides import ratio, take_turns

ALONE, DEFAULT = "without DDP", "DDP, Slipway's defaults"
MORE = {"DDP, buckets of 100 MB": ["--bucket-mb", "100"], "DDP, static graph": ["--static-graph"]}
LEAST, CLOSE = 0.99, 0.01
STEPS = 20  # in a block


def main() -> int:
    """Print the table; 1 where the target is missed without a reason."""
    if (options := read_ground(__doc__)) is None:
        return 0
    size = choose_size(options.device, options.smoke)
    size = replace(size, batch=size.batch // size.parts, parts=1)
    report = Report(
        "DDP with one process",
        f"{describe(options.device)}; {size.batch} × {size.context} tokens a step, one exchange a step.",
        options,
    )
    with tempfile.TemporaryDirectory() as folder, group_of_one(options.device, Path(folder)):
        measure(report, size, Path(folder))
    return report.close()


def measure(report: Report, size: Size, folder: Path) -> None:
    """Train all in turn, and compare."""
    device, steps = report.options.device, 1 if report.options.smoke else STEPS
    text, log = make_text(folder, size), ["--log-every", str(steps)]  # a line of progress at the end of each block
    ways = {ALONE: [], DEFAULT: [], **MORE}
    sides = {name: slipway(size, text, device, folder, [*log, *words]) for name, words in ways.items()}
    turns = blocks(device, {name: partial(take, side, name != ALONE) for name, side in sides.items()}, steps)
    costs = take_turns(warmed(turns, report, list(MORE)), report.options.rounds)
    losses = {name: sides[name].loss for name in costs}
    columns = ["side", "tokens a second", "CPU s of a turn", "loss in the end"]
    report.table("Tokens a second", columns, rows(costs, size.tokens * steps, losses))
    others = [f"{ratio(costs[ALONE], costs[name])} with {name}" for name in MORE if name in costs]
    why = f"a compiled model is cut at every bucket; it is {', '.join(others)}"
    report.target(f"{DEFAULT} / {ALONE}", ratio(costs[ALONE], costs[DEFAULT]), LEAST, reason=why)
    report.target("losses, apart by", differ(losses), CLOSE, f"of that {ALONE}", at_most=True)


def take(loop: Loop, averaged: bool, steps: int) -> None:
    """Take steps. In the first turn DDP is put in place before them: with some of its options a compiler may fail."""
    if averaged and not loop.training.step:
        loop.average()
    loop.take(steps)


if __name__ == "__main__":
    sys.exit(main())
