"""How long training on a GPU stands still for a snapshot of GPT-2 124M with Adam's moments, against torch.save and fsync.

    .venv/bench/bin/python bench/gpu/stall.py [--rounds 8] [--device cuda] [--folder DIR] [--smoke] [--json FILE]

1.5 GB. Each round has torch.save of model and optimizer with fsync, what the loop does instead, steps while that is written in
the background, and as many steps when nothing is. The stall counts until the GPU is free again: what comes after a snapshot
on its stream waits for the copies. The first snapshot is told apart, for it needs memory that is pinned first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

import torch
from gpt_sides import Size, choose_size, make_text, slipway
from ground import describe, read_ground, timed, wait
from loops import Loop
from report import Report
from sides import Cost, Spread, ratio
from snapshot_peers import save_with_torch
from snapshot_sides import tensors

from slipway.train.loop.saving import save, wait_for_writers

STALL = 0.060  # s
SHARE, SLOWDOWN = 0.01, 1.10  # of the time between two snapshots; of a step's time, while one is written
BATCH = 8  # sequences a step
PLAIN, OURS = "torch.save and fsync", "slipway, training stands still"
ALONE, BESIDE = "a step", "a step beside the writing"


def main() -> int:
    """Print the table; 1 where the target is missed without a reason."""
    if (options := read_ground(__doc__, more=add_folder)) is None:
        return 0
    size = choose_size(options.device, options.smoke)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        loop = make_loop(replace(size, batch=min(BATCH, size.batch), parts=1), options.device, Path(name))
        held = sum(part.nbytes for part in tensors(loop.training)) / 1e9
        report = Report("Snapshot on one GPU", f"{describe(options.device)}; {held:.2f} GB of state.", options)
        first = measure(loop, Path(name))
        turns = [measure(loop, Path(name)) for _ in range(options.rounds)]
        bandwidth = copy_rate(options.device, 2**20 if options.smoke else 2**29)
        every = loop.training.options.save_every
    costs = {name: [turn[name] for turn in turns] for name in first}
    tell(report, first, costs)
    copied = 1e3 * held * 1e9 / bandwidth
    report.note(f"Pinned memory takes {bandwidth / 1e9:.1f} GB/s from this device: the copy alone is {copied:.0f} ms.")
    judge(report, costs, every, f"{held:.2f} GB at {bandwidth / 1e9:.1f} GB/s are {held * 1e9 / bandwidth:.3f} s")
    return report.close()


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option that this bench has for itself."""
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default the system's own")


def make_loop(size: Size, device: torch.device, folder: Path) -> Loop:
    """A training after its first steps, so that the optimizer has its state."""
    loop = slipway(size, make_text(folder, size), device, folder, ["--no-compile", "--keep", "1"])
    loop.take(3)
    return loop


def measure(loop: Loop, folder: Path) -> dict[str, Cost]:
    """A round."""
    training, device = loop.training, loop.training.context.device
    plain = timed(device, lambda: save_with_torch(training, folder / "plain.pt"))
    ours = timed(device, lambda: save(training))
    beside = []
    while training.snapshots.writer.wait(0):
        beside.append(timed(device, lambda: loop.take(1)))
    wait_for_writers(training)
    alone = [timed(device, lambda: loop.take(1)) for _ in range(max(3, len(beside)))]
    return {PLAIN: plain, OURS: ours, ALONE: middle(alone), BESIDE: middle(beside or alone)}


def middle(costs: Sequence[Cost]) -> Cost:
    """The median of each kind of seconds."""
    return Cost(statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs))


def copy_rate(device: torch.device, size: int) -> float:
    """Bytes a second from the device into pinned memory."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    wait(device)
    return size / min(timed(device, lambda: target.copy_(source, non_blocking=True)).wall for _ in range(5))


def tell(report: Report, first: Mapping[str, Cost], costs: Mapping[str, Sequence[Cost]]) -> None:
    """Show what everything took."""
    rows = [
        [name, f"{Spread.of([cost.wall for cost in side])}", f"{Spread.of([cost.cpu for cost in side]).median:.3f}",
         f"{first[name].wall:.3f}"]
        for name, side in costs.items()
    ]  # fmt: skip
    report.table("Seconds", ["what", "seconds", "CPU s", "the first time"], rows)


def judge(report: Report, costs: Mapping[str, Sequence[Cost]], every: int, why: str) -> None:
    """Compare with what is to be reached."""
    stalls = [cost.wall for cost in costs[OURS]]
    report.target("training stands still", Spread.of(stalls), STALL, "s", at_most=True, reason=why)
    shares = [stall / (every * step.wall) for stall, step in zip(stalls, costs[ALONE], strict=True)]
    what = f"of the time between two snapshots, which are {every} steps of {BATCH} sequences apart"
    report.target("training stands still", Spread.of(shares), SHARE, what, at_most=True, reason=why)
    slower, busier = ratio(costs[BESIDE], costs[ALONE]), Spread.of([cost.cpu for cost in costs[BESIDE]]).median
    spent = (
        f"beside the writing the host spends {busier:.3f} CPU seconds a step, of which checksums and disk are a part"
    )
    report.target("a step while a snapshot is written, of one alone", slower, SLOWDOWN, at_most=True, reason=spent)
    report.note(f"The stall is {ratio(costs[OURS], costs[PLAIN])} of torch.save and fsync.")


if __name__ == "__main__":
    sys.exit(main())
