"""How fast a small network learns pictures, the tutorial's way and with the whole of `slipway vision`, on a CPU.

    python bench/vision.py [--rounds 8] [--smoke] [--json FILE]

Three trainings from the same weights with the same schedule take turns in one process: the tutorial's way with a DataLoader
of 0 and of 2 workers, and Slipway's loop with everything that it has on. Beside them stands what no training can do without.
In the end all are judged on the same pictures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from report import Report, options_parser, read_options
from sides import Cost, Spread, ratio
from turns import Host
from tutorial import Batches, Pictures, Tutorial, judge, transform
from vision_floor import OURS, PRODUCTS, make_floors

from slipway.options import parse
from slipway.options.vision import VisionOptions
from slipway.train.loop.arithmetic import read_precision
from slipway.train.loop.fit import fit
from slipway.train.loop.step import learning_rate
from slipway.train.models.cnn import build
from slipway.train.pictures import glyphs
from slipway.train.workloads.vision import make_task

SLIPWAY, WORDS = "slipway vision", "--model small --dataset glyphs --shift 4 --flip"
STEPS, BATCH = 1170, 128  # three epochs of the 50,000 pictures
TARGETS = {0: 2.7, 2: 2.2}  # workers of the DataLoader: times as many pictures a second, at least
LIKE_FOR_LIKE = 1.0  # the same in fp32, where Slipway's own choice is another
CLOSE = 0.01  # of the tutorial's accuracy
FLOORS = 0.15  # of a block's steps

Costs = Mapping[str, list[Cost]]
Judged = dict[str, Mapping[str, float]]


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    options = read_options(options_parser(__doc__))
    torch.set_num_threads(1)
    report = Report(
        "Pictures: training",
        f"`{SLIPWAY} {WORDS}`, the whole loop, against the same network, pictures, schedule and number of steps in the "
        f"tutorial's loop: fp32, batches of {BATCH}, one process with one thread. The DataLoader has workers in addition.",
        options,
    )
    best = read_precision("auto", torch.device("cpu")).name
    for precision in dict.fromkeys((best, "fp32")):
        measure(report, precision, TARGETS if precision == best else dict.fromkeys(TARGETS, LIKE_FOR_LIKE))
    if best == "fp32":
        report.note(
            "This CPU has no fast bf16, so Slipway's own choice is fp32: its best and like for like are one row."
        )
    return report.close()


def measure(report: Report, precision: str, targets: Mapping[int, float]) -> None:
    """Train all in turn, judge them, and say what bounds a step."""
    rounds, smoke = report.options.rounds, report.options.smoke
    block = 2 if smoke else STEPS // (rounds + 1)
    words = f"{WORDS} --batch-size {BATCH} --steps {block * (rounds + 1)} --precision {precision}"
    options = parse(VisionOptions, [*words.split(), *(["--eval-pictures", "500"] if smoke else [])])
    costs, judged = train(options, block, rounds)
    tell(report, precision, costs, judged)
    for workers, least in targets.items():
        theirs = costs[called(workers)]
        alone, products = (
            f"{ratio(costs[name], costs[SLIPWAY]).median:.0%} ({ratio(theirs, costs[name]).median:.2f} × without all else)"
            for name in (OURS, PRODUCTS)
        )
        reason = (
            f"of Slipway's step in {precision} the network alone is {alone}; as bare matrix products it is {products}"
        )
        report.target(
            f"{SLIPWAY} in {precision} / {called(workers)}", ratio(theirs, costs[SLIPWAY]), least, reason=reason
        )
    ours = judged.pop(SLIPWAY)["accuracy"]
    apart = Spread.of([abs(ours / each["accuracy"] - 1) for each in judged.values()])
    report.target(
        f"accuracy of {SLIPWAY} in {precision}, apart from the tutorial's by",
        apart,
        CLOSE,
        "of theirs",
        at_most=True,
    )


def train(options: VisionOptions, block: int, rounds: int) -> tuple[Costs, Judged]:
    """Train all from the same weights; what a step takes, accuracy and loss on the pictures that are held out."""
    with tempfile.TemporaryDirectory() as folder:
        host = Host(SLIPWAY, Path(folder), block, rounds)
        task = make_task(options, host)
        arrays, _ = glyphs.open_glyphs(host)
        varied = transform(glyphs.MEAN, glyphs.DEVIATION, glyphs.SIZE, options.shift)
        pictures = Pictures(arrays.train_pictures, arrays.train_labels.tolist(), varied)
        networks = {}
        for workers in TARGETS:
            networks[called(workers)] = network = build(options.model, len(glyphs.CLASSES), glyphs.SIZE)
            network.load_state_dict(task.model.state_dict())
            tutorial = Tutorial(
                network, Batches(pictures, BATCH, workers), lambda step: learning_rate(options, step, options.steps or 1),
                options.weight_decay, options.label_smoothing,
            )  # fmt: skip
            host.add(called(workers), tutorial.take)
        precision = read_precision(options.precision, host.device)
        for name, take in make_floors(task.model, precision, BATCH, glyphs.SIZE).items():
            host.add(name, take, FLOORS)
        with redirect_stdout(StringIO()):  # its lines count the others' time as well
            evaluation = fit(task, options, host).evaluation
    some, plain = options.eval_pictures, transform(glyphs.MEAN, glyphs.DEVIATION)
    held_out = Pictures(arrays.evaluation_pictures[:some], arrays.evaluation_labels[:some].tolist(), plain)
    return host.costs, {SLIPWAY: evaluation} | {name: judge(each, held_out) for name, each in networks.items()}


def tell(report: Report, precision: str, costs: Costs, judged: Judged) -> None:
    """Add the tables."""
    rows, bounds = [], []
    for name, each in costs.items():
        step = Spread.of([1e3 * cost.wall for cost in each])
        cpu = 1e3 * Spread.of([cost.cpu for cost in each]).median
        bounds.append([name, step.told(1), f"{cpu:.1f}", f"{ratio(each, costs[SLIPWAY]).median:.0%}"])
        if name in judged:
            speed = Spread.of([1e-3 * BATCH / cost.wall for cost in each])
            accuracy, loss = (f"{judged[name][word]:.4f}" for word in ("accuracy", "val_loss"))
            rows.append([name, speed.told(2, " k"), accuracy, loss])
    report.table(
        f"slipway in {precision}, the tutorial in fp32", ["way", "pictures a second", "accuracy", "loss"], rows
    )
    report.table("where the time goes", ["what", "ms a step", "CPU ms", "of slipway's step"], bounds)


def called(workers: int) -> str:
    """What the tutorial's way is called with so many workers."""
    return f"tutorial, {workers} workers"


if __name__ == "__main__":
    sys.exit(main())
