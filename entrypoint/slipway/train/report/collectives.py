"""The part of a page that shows what `allreduce` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.train.measure.bandwidth import rate_text, size_text, time_text
from slipway.train.measure.plots import Axis, Curve, draw
from slipway.train.report.run import Record, is_number

SIZE = Axis("message", size_text, base=2)
RATE, TIME = Axis("", rate_text), Axis("", time_text, base=10)


@dataclass(frozen=True)
class Point:
    """One measured collective and size: bytes, seconds, bytes per second."""

    collective: str
    size: float
    mean: float
    least: float
    largest: float
    algorithm: float
    bus: float

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        times = [time_text(seconds) for seconds in (self.mean, self.least, self.largest)]
        return [self.collective, size_text(self.size), *times, rate_text(self.algorithm), rate_text(self.bus)]


def points(run: Record) -> list[Point]:
    """What a run measured; rows that make no sense are left out."""
    rows = run.allreduce.get("results")
    return [point for row in (rows if isinstance(rows, list) else []) if (point := read_point(row))]


def read_point(row: Any) -> Point | None:
    """A row of allreduce.json."""
    try:
        latency: Mapping[str, float] = row["latency_us"]
        numbers = [row["bytes"], *(latency[name] / 1e6 for name in ("mean", "min", "max"))]
        numbers += [row[f"{kind}_gb_per_second"] * 1e9 for kind in ("algorithm", "bus")]
    except (KeyError, TypeError):
        return None
    return Point(str(row.get("collective")), *numbers) if all(map(is_number, numbers)) else None


def plots(runs: Sequence[Record]) -> list[str]:
    """Bandwidth and latency: of one run with a curve for each collective, else for each collective one for each run."""
    found = {number: points(run) for number, run in enumerate(runs)}
    found = {number: rows for number, rows in found.items() if rows}
    names = list(dict.fromkeys(row.collective for rows in found.values() for row in rows))
    if len(found) == 1:
        [rows] = found.values()
        groups = {"": [(name, colour, pick(rows, name)) for colour, name in enumerate(names)]}
    else:
        groups = {
            f"{name}: ": [(runs[number].name, number, pick(rows, name)) for number, rows in found.items()]
            for name in names
        }
    pictures = []
    for title, curves in groups.items():
        buses = [Curve(name, tuple((row.size, row.bus) for row in rows), colour) for name, colour, rows in curves]
        times = [Curve(name, tuple((row.size, row.mean) for row in rows), colour) for name, colour, rows in curves]
        pictures.append(draw(f"{title}bus bandwidth", buses, SIZE, RATE, legend=True))
        pictures.append(draw(f"{title}latency", times, SIZE, TIME, legend=True))
    return pictures


def pick(rows: Sequence[Point], name: str) -> list[Point]:
    """The rows of one collective."""
    return [row for row in rows if row.collective == name]


def remarks(run: Record) -> list[str]:
    """What a run says beside its numbers: how it was measured, what was left out, who is slow."""
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
