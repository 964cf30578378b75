"""How many pictures a second ResNet-50 learns from on one GPU, against torchvision's reference loop, in turns.

    .venv/bench/bin/python bench/gpu/resnet50.py [--rounds 8] [--device cuda] [--smoke] [--json FILE]

Synthetic pictures of 224 × 224 in batches of 256, from the same weights. torchvision's side has them normalised on the GPU
already; Slipway indexes and normalises bytes at each step, as it does for any collection that fits the GPU. Once the reference
is as one types it (--amp: fp16, a gradient scaler, channels first), once like for like (bf16, channels_last).
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

import torch
from ground import DTYPES, blocks, describe, differ, quickest, read_ground, rows, speed, warmed
from loops import Loop, make_training
from noise_pictures import in_place
from reference import Reference, ready_batches
from report import Report
from shares import PROFILED, bound, find_shares, table
from sides import ratio, take_turns

from slipway.train.pictures.arrays import Normaliser
from slipway.train.pictures.glyphs import DEVIATION, MEAN

OURS, COMPILED, SOUGHT = "slipway", "slipway --compile", "slipway, cudnn.benchmark"
PEER, ALIKE = "torchvision's loop, --amp", "torchvision's loop, bf16 and channels_last"
LEAST, FASTER, CLOSE = 2470, 1.0, 0.01  # pictures a second; times as fast; of the loss
BATCH, COUNT, CLASSES, SMOOTHING, DECAY = 256, 4096, 1000, 0.1, 1e-4
STEPS = 20  # in a block


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    if (options := read_ground(__doc__)) is None:
        return 0
    report = Report(
        "ResNet-50 on one GPU",
        f"{describe(options.device)}; 224 × 224 pixels, batches of {BATCH}, {CLASSES} classes; losses are of the last turn.",
        options,
    )
    count, size, batch, steps = (4, 72, 2, 1) if options.smoke else (COUNT, 224, BATCH, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(options, Path(folder), count, size, batch, steps)
        turns = blocks(options.device, {name: side.take for name, side in sides.items()}, steps)
        costs = take_turns(warmed(turns, report, [COMPILED]), options.rounds)
        losses = {name: sides[name].loss for name in costs}
        columns = ["side", "pictures a second", "CPU s of a turn", "loss in the end"]
        report.table("Pictures a second", columns, rows(costs, batch * steps, losses))
        some = min(steps, PROFILED)
        found = find_shares(options.device, lambda: sides[OURS].take(some))
        report.table(f"Where a step of {OURS} goes, profiled", ["kind", "ms a step", "share"], table(found, some))
    why = bound(found)[1]
    best = quickest(costs, [OURS, COMPILED])
    report.target(best, speed(costs[best], batch * steps), LEAST, "pictures a second", reason=why)
    report.target(f"{best} / {PEER}", ratio(costs[PEER], costs[best]), FASTER, reason=why)
    report.target(f"{OURS} / {ALIKE}, like for like", ratio(costs[ALIKE], costs[OURS]), FASTER, reason=why)
    report.note(f"With cudnn.benchmark on, slipway takes {ratio(costs[SOUGHT], costs[OURS])} of its time.")
    report.target("losses, apart by", differ(losses), CLOSE, "of ours", at_most=True)
    return report.close()


def make_sides(
    options: argparse.Namespace, folder: Path, count: int, size: int, batch: int, steps: int
) -> dict[str, Loop | Sought | Reference]:
    """All sides, before their first step."""
    device, total = options.device, steps * (options.rounds + 4)  # two turns to warm up, two to be profiled
    words = (
        f"vision --model resnet50 --dataset glyphs --batch-size {batch} --steps {total} --lr 0.02 --warmup {steps} "
        f"--schedule constant --weight-decay {DECAY} --shift 0 --cutout 0 --label-smoothing {SMOOTHING} --log-every {steps}"
    ).split()
    with in_place(count, size, CLASSES) as (pictures, labels):
        compiling = ["--compile"] if device.type == "cuda" else []
        ours, compiled, sought = (Loop(make_training([*words, *more], device, folder)) for more in ([], compiling, []))
    training = ours.training
    normalise = Normaliser(MEAN, DEVIATION, size, device)
    lying, known = torch.from_numpy(pictures).to(device), torch.from_numpy(labels).to(device, torch.int64)
    begin = fresh(training.task.model)

    def peer(precision: torch.dtype | None, layout: torch.memory_format) -> Reference:
        network = copy.deepcopy(begin).to(device, memory_format=layout)  # type: ignore[call-overload]
        batches = ready_batches(normalise, lying, known, batch, layout)
        return Reference(network, batches, ours.rate, DECAY, SMOOTHING, precision, device)

    return {
        OURS: ours, COMPILED: compiled, SOUGHT: Sought(sought),
        PEER: peer(torch.float16 if device.type == "cuda" else None, torch.contiguous_format),
        ALIKE: peer(DTYPES[training.precision.name], torch.channels_last),
    }  # fmt: skip


def fresh(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a network without what `stand_apart` did to it."""
    bare = copy.deepcopy(model)
    del bare.forward  # that of its class comes to light again
    return bare


class Sought:
    """Slipway's loop while cuDNN may try its ways for each shape, and keeps the fastest."""

    def __init__(self, loop: Loop) -> None:
        """Let `loop` be as it is when it is not its turn."""
        self._loop = loop

    def take(self, steps: int) -> None:
        """Take so many steps."""
        before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
        self._loop.take(steps)
        torch.backends.cudnn.benchmark = before

    @property
    def loss(self) -> float:
        """The loop's."""
        return self._loop.loss


if __name__ == "__main__":
    sys.exit(main())
