"""The same training with and without DDP, weights side by side: what data parallelism changes, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from slipway.options import Common
from slipway.protocol.durable import replace_file
from slipway.protocol.files import COMPARISON_FILE, METRICS_FILE, SNAPSHOTS, read_metrics
from slipway.protocol.outcomes import Word
from slipway.protocol.snapshots import list_snapshots
from slipway.train.loop.fit import fit
from slipway.train.loop.training import divide_batch
from slipway.train.measure.plots import aligned, comparison_rows
from slipway.train.task import Task
from slipway.train.worker.context import Context

ALONE = "without-ddp"  # there as well: the run of the training without DDP
# Times the largest weight, or 1 where that is smaller. Numbers in fp32 are 6e-8 apart there; the same sums, taken in
# another order at each step, differ by a few of these after thousands of steps.
TOLERANCE = 1e-5
ADVICE = "Where --lr is so high that training diverges, rounding grows with it: type a smaller one."
SHOWN = 8  # weights of each tensor in the table

Kind = TypeVar("Kind", bound=Common)


class DifferenceError(Exception):
    """Training with and without DDP did not reach the same weights."""


@dataclass(frozen=True)
class Comparison:
    """Two trainings from the same start through the same batches, first the one with DDP, then the one without.

    `seconds` count the steps, not evaluations and snapshots. `weights` holds the first ones of each tensor with their
    names, `others` how many more there are and how much these differ at most; `largest` is the largest weight of all,
    without its sign, and `difference` the largest difference.
    """

    processes: int
    steps: int
    seconds: tuple[float, float]
    weights: tuple[tuple[str, float, float], ...]
    others: tuple[int, float]
    largest: float
    difference: float

    @property
    def tolerance(self) -> float:
        """How much the weights may differ by rounding."""
        return TOLERANCE * max(1.0, self.largest)

    @property
    def equal(self) -> bool:
        """Whether the weights are the same, but for rounding."""
        return self.difference <= self.tolerance


def begins_anew(context: Context) -> bool:
    """Whether the training that follows begins at step 0, as all ranks see it: only then is there something to compare."""
    place = context.place
    known = place.resume not in ("none", "auto") or bool(list_snapshots(place.run_dir / SNAPSHOTS))
    return not any(context.total(known))


def compare_without_ddp(
    task: Task, make_task: Callable[[Kind, Context], Task], options: Kind, context: Context
) -> None:
    """Once `task` is trained, train another in rank 0 alone, without DDP; show and write down the difference.

    The other ranks wait for it. Raises DifferenceError, on all ranks.
    """
    record: dict[str, Any] = {}
    if context.place.rank == 0 and (made := train_alone(task, make_task, options, context)):
        record = asdict(made) | {"tolerance": made.tolerance, "equal": made.equal}
        replace_file(context.place.run_dir / COMPARISON_FILE, json.dumps(record, indent=1))
        head, rows = comparison_rows(record)
        context.say("\n".join(["", *aligned([head, *rows]), "", *explanation(made)]))
    context.wait_for_all()
    require_equal(record, context)


def recall(context: Context) -> None:
    """Say that there is nothing to compare, and what an earlier comparison found. Raises DifferenceError, on all ranks."""
    record, file = {}, context.place.run_dir / COMPARISON_FILE
    context.say(
        "There is nothing to compare: a comparison starts with the training, and this run resumes from a snapshot."
    )
    if context.place.rank == 0 and file.exists():
        record = json.loads(file.read_text())
        context.say(f"When it began, the largest difference was {record['difference']:.1e} ({COMPARISON_FILE}).")
    require_equal(record, context)


def require_equal(record: Mapping[str, Any], context: Context) -> None:
    """Raise DifferenceError, on all ranks, where rank 0 has the record of a comparison that found a difference."""
    if any(context.total(not record.get("equal", True))):
        values = "{difference:.1e}, and rounding explains {tolerance:.1e}".format_map(record) if record else "too much"
        raise DifferenceError(f"the weights with and without DDP differ by {values}. {ADVICE}")


def train_alone(
    task: Task, make_task: Callable[[Kind, Context], Task], options: Kind, context: Context
) -> Comparison | None:
    """The comparison of `task` with the same in this process alone; None where that was stopped, which `context` notes."""
    place, size = context.place, divide_batch(options, context)
    alone = context.alone(place.run_dir / ALONE)
    alone.place.run_dir.mkdir(exist_ok=True)
    context.say("\nThe same again without DDP, one process with the whole batch:")
    whole = replace(options, batch_size=size, batch_size_per_process=None, accumulate=1)
    other = make_task(whole, alone)
    result = fit(other, whole, alone)
    if result.outcome != Word.FINISHED:
        context.conclude(result.outcome, f"{result.outcome} while comparing; the training itself is finished and saved")
        return None
    seconds = [training_seconds(run, task, size) for run in (place.run_dir, alone.place.run_dir)]
    return lay_side_by_side(task, other, place.world_size, result.step, (seconds[0], seconds[1]))


def training_seconds(run: Path, task: Task, batch_size: int) -> float:
    """The seconds that a run spent in its steps, from the throughput in its metrics."""
    seconds, before = 0.0, 0
    for _, line in read_metrics(run / METRICS_FILE):
        if speed := line.get(f"{task.unit}_per_second"):
            seconds += (line["step"] - before) * batch_size * task.units_per_sample / speed
            before = line["step"]
    return seconds


def lay_side_by_side(task: Task, other: Task, processes: int, steps: int, seconds: tuple[float, float]) -> Comparison:
    """Compare the weights of two tasks with equal models, weight by weight."""
    weights: list[tuple[str, float, float]] = []
    others, rest, largest, difference = 0, 0.0, 0.0, 0.0
    for (name, one), another in zip(task.model.named_parameters(), other.model.parameters(), strict=True):
        left, right = (tensor.detach().cpu().double().flatten() for tensor in (one, another))
        shown = zip(left[:SHOWN].tolist(), right[:SHOWN].tolist(), strict=True)
        weights += [(f"{name}[{place}]", *pair) for place, pair in enumerate(shown)]
        apart = (left - right).abs()
        difference, largest = max(difference, float(apart.max())), max(largest, float(left.abs().max()))
        if len(left) > SHOWN:
            others, rest = others + len(left) - SHOWN, max(rest, float(apart[SHOWN:].max()))
    return Comparison(processes, steps, seconds, tuple(weights), (others, rest), largest, difference)


def explanation(made: Comparison) -> list[str]:
    """What the table shows, in words."""
    if not made.equal:
        return [f"The weights differ by more than the {made.tolerance:.1e} that rounding explains."]
    if made.processes == 1:
        return ["A single process has no gradients to average: DDP was not used, and both trainings are the same."]
    lines = [
        "Both reach the same weights, but for rounding: the mean of the gradients that the processes find, each in its",
        "share of a batch, is the gradient of the whole batch, and DDP takes that mean before each step.",
    ]
    if made.seconds[0] > made.seconds[1]:
        lines.append(
            "With one small layer the exchange takes longer than sharing the work saves; that turns with its size."
        )
    return lines
