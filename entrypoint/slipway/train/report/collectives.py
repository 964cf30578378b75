"""The part of a page that shows what `allreduce` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipway.train.measure.bandwidth import RATE, TIME, Measurement, by_collective, draw_by_size
from slipway.train.report.run import Record, is_number


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
