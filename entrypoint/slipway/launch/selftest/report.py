"""The report of a selftest, for people and for machines. Pure."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from slipway.launch.health.finding import table_lines
from slipway.launch.selftest.judge import BROKEN, LEFT_OUT, PASSED, Result, code_of_all
from slipway.protocol.errors import CONFIGURATION, FAILED, FINISHED, UNHEALTHY

COLOURS = MappingProxyType({PASSED: "green", BROKEN: "red", LEFT_OUT: "bright_black"})
CLOSING = MappingProxyType(
    {
        FINISHED: "what could be tried here works",
        FAILED: "the image, or this checkout, is at fault: report it, with what --json prints",
        UNHEALTHY: "this node is unhealthy: take it out of service",
        CONFIGURATION: "wrong configuration: see the rows that failed",
    }
)
Timed = tuple[Result, float]  # with the seconds that it took


def report_json(timed: Sequence[Timed], versions: Mapping[str, Any], links: str) -> dict[str, Any]:
    """The documented form of `slipway selftest --json`."""
    return {
        "code": code_of_all(tuple(result for result, _ in timed)),
        "seconds": round(sum(seconds for _, seconds in timed)),
        "machine": {**versions, "links": links or None},
        "rows": [{**dataclasses.asdict(result), "seconds": round(seconds, 1)} for result, seconds in timed],
    }


def report_lines(report: Mapping[str, Any], colour: bool, width: int) -> list[str]:
    """The table of what `report_json` says, what it adds up to, and one line about the machine."""
    rows = [
        (row["level"], row["what"], f"{row['found']}  ({row['seconds']:.0f} s)", row["advice"])
        for row in report["rows"]
    ]
    counts = Counter(row["level"] for row in report["rows"])
    told = ", ".join(f"{counts[level]} {level}" for level in (PASSED, BROKEN, LEFT_OUT) if counts[level])
    return [
        *table_lines(rows, COLOURS, colour, width),
        f"{told}, in {report['seconds']} s",
        machine_line(report["machine"]),
        f"exit code {report['code']}: {CLOSING[report['code']]}",
    ]


def machine_line(machine: Mapping[str, Any]) -> str:
    """The devices and versions in a line."""
    gpus = Counter(machine["gpus"])
    devices = " + ".join(f"{count} × {name}" for name, count in gpus.items()) or f"no GPU ({machine['no_gpu_because']})"
    named = [f"{name} {machine[name]}" for name in ("driver", "torch", "nccl", "slipway", "image") if machine[name]]
    named.insert(1 if machine["driver"] else 0, f"cuda {machine['cuda']}")
    links = [machine["links"]] if machine["links"] else []
    return ", ".join([devices, *links, *named, f"{machine['cpus']:g} CPUs", machine["kernel"]])
