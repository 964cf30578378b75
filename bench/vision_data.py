"""How fast pictures of CIFAR's shape become batches, the tutorial's way and Slipway's, on a CPU.

    python bench/vision_data.py [--rounds 8] [--smoke] [--json FILE]

50,000 pictures of 32×32 pixels, moved by up to 4 pixels, every other mirrored, normalised, 128 in a batch. The tutorial's
way is torchvision's CIFAR10 with PIL and a DataLoader; Slipway's is what `slipway vision` trains on. Nothing is trained.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from report import Report, options_parser, read_options
from sides import Cost, Side, Spread, ratio, take_turns
from turns import REST, Clock
from tutorial import PREFETCHED, Batches, Pictures, transform

from slipway.train.loop.loader import Loader, Sampler
from slipway.train.pictures.arrays import Arrays, Bytes, Normaliser, Variation, on_device
from slipway.train.task import Batch

COUNT, SIZE, BATCH, SHIFT, CLASSES = 50_000, 32, 128, 4, 10
MEAN, DEVIATION = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
TARGETS = {0: 5.0, 2: 3.5}  # workers of the DataLoader: times as many pictures a second, at least
OURS = "slipway"
BATCHES = {"tutorial": 60, OURS: 600}  # in a block: about a second each


def main() -> int:
    """Print the table; 1 where a target is missed."""
    options = read_options(options_parser(__doc__))
    torch.set_num_threads(1)
    count = COUNT // 50 if options.smoke else COUNT
    report = Report(
        "Pictures: the data path alone",
        f"{count:,} random pictures of {SIZE}×{SIZE} are moved, mirrored and normalised, in batches of {BATCH}, by one "
        "process with one thread. The DataLoader has workers in addition, which start before the measurement and keep "
        "running.",
        options,
    )
    pictures, labels = make_pictures(count)
    tutorial = Pictures(pictures, labels.tolist(), transform(MEAN, DEVIATION, SIZE, SHIFT))
    streams: dict[str, Callable[[], Batch]] = {
        **{f"tutorial, {workers} workers": Batches(tutorial, BATCH, workers).__next__ for workers in TARGETS},
        OURS: slipway(pictures, labels),
    }
    check_likeness(streams, 2 if options.smoke else 30)
    costs = take_turns({name: side(name, stream, options.smoke) for name, stream in streams.items()}, options.rounds)
    report.table(
        "Pictures a second",
        ["way", "pictures a second", "CPU µs a picture"],
        [[name, thousands(side), f"{1e6 * Spread.of([cost.cpu for cost in side]).median:.1f}"] for name, side in costs.items()],
    )  # fmt: skip
    for workers, least in TARGETS.items():
        name = f"tutorial, {workers} workers"
        report.target(f"slipway / {name}", ratio(costs[name], costs[OURS]), least)
    return report.close()


def make_pictures(count: int) -> tuple[Bytes, Bytes]:
    """Random pictures and labels, the same at each call."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (count, SIZE, SIZE, 3), np.uint8)
    return pictures, random.integers(0, CLASSES, count, np.uint8)


def slipway(pictures: Bytes, labels: Bytes) -> Callable[[], Batch]:
    """Batches as `slipway vision` makes them for one process."""
    device = torch.device("cpu")
    held = on_device(
        Arrays(pictures, labels, pictures[:BATCH], labels[:BATCH]), Variation(SHIFT, True, 0), (None, None), device,
        classes=tuple(map(str, range(CLASSES))), mean=MEAN, deviation=DEVIATION, identity="random",
    )  # fmt: skip
    normalise = Normaliser(MEAN, DEVIATION, SIZE, device)

    def make(indices: torch.Tensor, keys: torch.Tensor) -> Batch:
        return normalise(held.train(indices, keys))

    loader = Loader(make, Sampler(held.count, 0), BATCH, 1, (0, 1), device, workers=0)
    loader.start(0)
    return lambda: next(loader.step())


def check_likeness(streams: dict[str, Callable[[], Batch]], batches: int) -> None:
    """Raise RuntimeError where the ways do not make alike batches: shape, type, mean and deviation of the pixels."""
    found = {}
    for name, stream in streams.items():
        drawn = [stream() for _ in range(batches)]
        pixels = torch.stack([pictures for pictures, _ in drawn])
        shapes = [(part.shape, part.dtype) for part in drawn[0]]
        found[name] = (shapes, float(pixels.mean()), float(pixels.std()))
    shapes, mean, deviation = found[OURS]
    for name, (other, its_mean, its_deviation) in found.items():
        if other != shapes or max(abs(its_mean - mean), abs(its_deviation - deviation)) > 0.02 * deviation:
            raise RuntimeError(f"{name} makes other batches than {OURS}: {found}")


def side(name: str, stream: Callable[[], Batch], smoke: bool) -> Side:
    """A block of batches; what a picture costs."""
    batches = 4 if smoke else BATCHES[name.partition(",")[0]]
    ahead = PREFETCHED * max(TARGETS) if name != OURS else 0

    def once() -> Cost:
        for _ in range(ahead):  # which workers made while it was not their turn
            stream()
        clock = Clock()
        for _ in range(batches):
            stream()
        cost = clock.read(batches * BATCH)
        time.sleep(REST)
        return cost

    return once


def thousands(costs: list[Cost]) -> str:
    """Pictures a second, and their spread."""
    speed = Spread.of([1e-3 / cost.wall for cost in costs])
    return speed.told(1, " k")


if __name__ == "__main__":
    sys.exit(main())
