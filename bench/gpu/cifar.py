"""How fast `slipway vision` learns CIFAR-shaped pictures on one GPU, against airbench94's way, in turns.

    .venv/bench/bin/python bench/gpu/cifar.py [--rounds 8] [--device cuda] [--smoke] [--json FILE]

Slipway's ResNet-9 on all sides, from the same weights, with the same schedule, on the same 50,000 pictures, which are moved and
mirrored, in batches of 1024. airbench's weights and pictures are in half precision; the row that is like for like has them
under autocast to bf16, as Slipway does. Compared is the time for the same number of pictures.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

import torch
from airbench import Airbench, Epochs
from ground import blocks, describe, differ, quickest, read_ground, rows, warmed
from loops import Loop, make_training
from noise_pictures import in_place
from report import Report
from shares import PROFILED, bound, find_shares, table
from sides import ratio, take_turns

from slipway.train.models.cnn import build
from slipway.train.pictures.glyphs import DEVIATION, MEAN

OURS, COMPILED = "slipway", "slipway --compile"
PEER, PEER_COMPILED, ALIKE = "airbench94's way", "airbench94's way, compiled", "airbench94's way under autocast"
LONGER, CLOSE = 1.02, 0.01
BATCH, SHIFT, SMOOTHING, DECAY = 1024, 4, 0.1, 5e-4
STEPS = 98  # in a block: two epochs


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    if (options := read_ground(__doc__)) is None:
        return 0
    report = Report(
        "CIFAR-shaped pictures on one GPU",
        f"{describe(options.device)}; ResNet-9, batches of {BATCH}; losses are those of the last turn.",
        options,
    )
    count, batch, steps = (64, 4, 1) if options.smoke else (50_000, BATCH, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(options, Path(folder), count, batch, steps)
        turns = blocks(options.device, {name: side.take for name, side in sides.items()}, steps)
        costs = take_turns(warmed(turns, report, [COMPILED, PEER_COMPILED]), options.rounds)
        losses = {name: sides[name].loss for name in costs}
        columns = ["side", "pictures a second", "CPU s of a turn", "loss in the end"]
        report.table("Pictures a second", columns, rows(costs, batch * steps, losses))
        best = quickest(costs, [OURS, COMPILED])
        some = min(steps, PROFILED)
        found = find_shares(options.device, lambda: sides[best].take(some))
        report.table(f"Where a step of {best} goes, profiled", ["kind", "ms a step", "share"], table(found, some))
    why, rival = bound(found)[1], quickest(costs, [PEER, PEER_COMPILED])
    report.target(f"time of {best} / {rival}, best against best", ratio(costs[best], costs[rival]), LONGER, at_most=True,
                  reason=why)  # fmt: skip
    report.target(f"time of {OURS} / {ALIKE}, like for like", ratio(costs[OURS], costs[ALIKE]), LONGER, at_most=True,
                  reason=why)  # fmt: skip
    report.target("losses, apart by", differ(losses), CLOSE, "of ours", at_most=True)
    return report.close()


def make_sides(
    options: argparse.Namespace, folder: Path, count: int, batch: int, steps: int
) -> dict[str, Loop | Airbench]:
    """All sides, before their first step."""
    total = steps * (options.rounds + 4)  # two turns to warm up, two to be profiled
    words = (
        f"vision --model resnet9 --dataset glyphs --batch-size {batch} --steps {total} --lr 0.4 --warmup {total // 5} "
        f"--schedule linear --weight-decay {DECAY} --shift {SHIFT} --flip --cutout 0 --label-smoothing {SMOOTHING} "
        f"--log-every {steps}"
    ).split()
    with in_place(count, 32, 10) as (pictures, labels):
        ours = {
            name: Loop(make_training([*words, *more], options.device, folder))
            for name, more in ((OURS, []), (COMPILED, ["--compile"] if options.device.type == "cuda" else []))
        }
    dtype = torch.float16 if options.device.type == "cuda" else torch.float32
    begin = build("resnet9", 10, 32)
    begin.load_state_dict(ours[OURS].training.task.model.state_dict())

    def peer(half: bool, compiled: bool) -> Airbench:
        epochs = Epochs(pictures, labels, MEAN, DEVIATION, SHIFT, batch, options.device, dtype)
        network = copy.deepcopy(begin).to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Airbench(network, epochs, ours[OURS].rate, DECAY, SMOOTHING, half, compiled, options.device)

    return {**ours, PEER: peer(True, False), PEER_COMPILED: peer(True, True), ALIKE: peer(False, False)}


if __name__ == "__main__":
    sys.exit(main())
