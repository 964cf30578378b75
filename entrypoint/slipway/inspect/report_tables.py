"""The tables of a report: each run, its results, its throughput and its settings; and what `allreduce` measured."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.inspect.report_run import NONE, Record, is_number
from slipway.options.command import as_typed
from slipway.options.common import DEFAULT
from slipway.protocol.printable import counted
from slipway.protocol.redact import redact_words
from slipway.train.measure.bandwidth import RATE, TIME, Measurement, by_collective, draw_by_size

SPEED = "_per_second"
# These metrics come first, in this order; the others follow in the order in which they were found.
FIRST = ("loss", "val_loss", "accuracy", "bits_per_byte", "perplexity", "lr", "grad_norm")
LAST = ("skipped", "epoch")


@dataclass(frozen=True)
class TableRow:
    """A row of a table: a cell for each run, with a note under it; `differs` where the runs are not alike."""

    label: str
    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()
    differs: bool = False


def metric_names(runs: Sequence[Record]) -> list[str]:
    """Every metric that any run has, the most important ones first."""
    found = dict.fromkeys(name for run in runs for name in run.metrics.curves)
    ordered = [name for name in FIRST if name in found]
    ordered += [name for name in found if name not in FIRST and name not in LAST]
    return ordered + [name for name in LAST if name in found]


def overview(runs: Sequence[Record]) -> list[TableRow]:
    """What each run is and how it ended."""
    rows: list[tuple[str, Callable[[Record], str]]] = [
        ("workload", lambda run: run.workload),
        ("state", lambda run: run.ending.state),
        *((label, pick_fact(label)) for label in dict.fromkeys(fact for run in runs for fact, _ in run.ending.facts)),
        ("started", lambda run: clock_text(run.about.started)),
        ("topology", topology),
        ("attempts", lambda run: str(run.about.attempt or NONE)),
        ("steps", lambda run: f"{run.metrics.steps:,}" if run.metrics.curves else NONE),
        ("from first to last report", duration),
        ("arguments", arguments),
        ("device", lambda run: run.about.device or NONE),
        ("slipway", lambda run: run.about.version or NONE),
        ("torch", lambda run: run.about.torch or NONE),
        ("image", lambda run: run.about.image or NONE),
        ("directory", lambda run: str(run.path)),
        ("damaged lines", lambda run: str(run.metrics.damaged or "")),
    ]
    made = [TableRow(label, tuple(tell(run) for run in runs)) for label, tell in rows]
    return [row for row in made if set(row.cells) - {NONE, ""}]


def pick_fact(label: str) -> Callable[[Record], str]:
    """What the launcher recorded of a run under a label."""
    return lambda run: dict(run.ending.facts).get(label, NONE)


def topology(run: Record) -> str:
    """Nodes and processes, as the launcher wrote them down."""
    nodes, each = run.about.nodes, run.about.processes_per_node
    if not (nodes and each):
        processes = run.allreduce.get("processes")
        return counted(processes, "process") if isinstance(processes, int) else NONE
    return f"{counted(nodes, 'node')} × {each} = {counted(nodes * each, 'process')}"


def arguments(run: Record) -> str:
    """What was typed after the workload's name."""
    words = [*map(str, run.about.arguments)]
    return shlex.join(redact_words(words)) if words else NONE


def duration(run: Record) -> str:
    """The time from the first line of metrics to the last, with the pauses between attempts."""
    first, last = run.metrics.first, run.metrics.last
    if first is None or last is None or last <= first:
        return NONE
    minutes, seconds = divmod(round(last - first), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def clock_text(seconds: float | None) -> str:
    """A time in Unix seconds as people read it; NONE where it is unknown, or none that a clock could show."""
    try:
        return NONE if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return NONE


def last_values(runs: Sequence[Record]) -> list[TableRow]:
    """The last value of each metric, with its step where that is not the run's last."""
    rows = []
    for name in metric_names(runs):
        if name.endswith(SPEED):
            continue
        last = [run.metrics.curves[name][-1] if name in run.metrics.curves else None for run in runs]
        notes = [
            f"step {int(point[0]):,}" if point and point[0] != run.metrics.steps else ""
            for point, run in zip(last, runs, strict=True)
        ]
        cells = tuple(f"{point[1]:.6g}" if point else NONE for point in last)
        rows.append(TableRow(name, cells, tuple(notes)))
    return rows


def throughput(runs: Sequence[Record]) -> list[TableRow]:
    """Median and best speed of each run, in each unit that occurs."""
    rows = []
    for name in (name for name in metric_names(runs) if name.endswith(SPEED)):
        unit = name.removesuffix(SPEED)
        speeds = [[speed for _, speed in run.metrics.curves.get(name, ())] for run in runs]
        for label, pick in (("median", statistics.median), ("best", max)):
            cells = tuple(f"{pick(values):,.0f}" if values else NONE for values in speeds)
            rows.append(TableRow(f"{unit}/s, {label}", cells))
    return rows


def missing_curves(run: Record) -> str:
    """Why a run has no curves; empty if it has some."""
    if any(len(points) > 1 for points in run.metrics.curves.values()):
        return ""
    if run.metrics.curves:
        return "No curves: each metric was recorded only once. For a curve, type --log-every with a smaller number of steps."
    return f"No curves: {run.metrics.unread or 'no metrics were recorded'}."


def settings(runs: Sequence[Record]) -> list[TableRow]:
    """Each option that differs from its default in a run, with its value in each and its source; differences are marked."""
    names = dict.fromkeys(name for run in runs for name in run.options if name not in ("workload", "sources"))
    rows = []
    for name in names:
        values = [run.options.get(name) for run in runs]
        cells = tuple(NONE if value is None else as_typed(value) for value in values)
        notes = tuple(source if (source := str(run.sources.get(name, DEFAULT))) != DEFAULT else "" for run in runs)
        if any(notes) or len(set(cells)) > 1 or not all(run.sources for run in runs):
            rows.append(TableRow(name.replace("_", "-"), cells, notes, len(set(cells)) > 1))
    return rows


def measurements(run: Record) -> list[Measurement]:
    """What a run measured; rows that make no sense are left out."""
    rows = run.allreduce.get("results")
    return [found for row in (rows if isinstance(rows, list) else []) if (found := read_measurement(row))]


def read_measurement(row: Any) -> Measurement | None:
    """A row of allreduce.json."""
    try:
        latency: Mapping[str, float] = row["latency_us"]
        numbers = [row["bytes"], *(latency[name] / 1e6 for name in ("mean", "min", "max"))]
        numbers += [row[f"{kind}_gb_per_second"] * 1e9 for kind in ("algorithm", "bus")]
    except (KeyError, TypeError):
        return None
    return Measurement(str(row.get("collective")), *numbers) if all(map(is_number, numbers)) else None


def plots(runs: Sequence[Record]) -> list[str]:
    """Bandwidth and latency: of one run with a curve for each collective, else for each collective one for each run."""
    found = {number: by_collective(measurements(run)) for number, run in enumerate(runs)}
    found = {number: measured for number, measured in found.items() if measured}
    names = list(dict.fromkeys(name for measured in found.values() for name in measured))
    if len(found) == 1:
        [measured] = found.values()
        groups = {"": [(name, colour, measured[name]) for colour, name in enumerate(names)]}
    else:
        groups = {
            f"{name}: ": [(runs[number].name, number, measured.get(name, [])) for number, measured in found.items()]
            for name in names
        }
    pictures = []
    for title, curves in groups.items():
        pictures.append(draw_by_size(f"{title}bus bandwidth", curves, lambda row: row.bus, RATE))
        pictures.append(draw_by_size(f"{title}latency", curves, lambda row: row.mean, TIME))
    return pictures


def remarks(run: Record) -> list[str]:
    """What a run reports besides its numbers: how it was measured, what was left out, which rank is slow."""
    about = run.allreduce
    lines = [
        f"{about.get('processes')} processes, {about.get('backend')} on {about.get('device')}, {about.get('dtype')}, "
        f"{about.get('iterations')} calls after {about.get('warmup_iterations')} to warm up"
    ]
    if about.get("complete") is False:
        lines.append("It was stopped before everything was measured.")
    skipped = about.get("skipped")
    lines += [f"{name} was skipped: {why}" for name, why in skipped.items()] if isinstance(skipped, dict) else []
    slowest = about.get("slowest")
    if isinstance(slowest, dict):
        lines.append(f"Slowest rank: {slowest.get('rank')} ({slowest.get('host')}): {slowest.get('text')}")
    return lines
