"""A trace in Chrome's JSON format, as torch's profiler writes it: its events, which of them compute or communicate, and spans of
time, from which it follows how much of one kind another covers.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipway.protocol.files import open_run_file

LARGEST = 2 << 30  # bytes of a trace, unpacked
STEP = "step "  # begins the name of what spans a step
# Collectives as the backends name them: in flight from where they are begun to where they are done.
IN_FLIGHT = ("gloo:", "nccl:", "mpi:", "ucc:")
CALLS = ("c10d::", *IN_FLIGHT)  # with how they are begun
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
WHOLE_NUMBERS = "long int"  # stop flag, comparison of replicas: they span steps on purpose


@dataclass(frozen=True)
class Trace:
    """What a rank's profiler wrote: its `events`, whose times are microseconds from `base` (Unix nanoseconds)."""

    base: int
    events: tuple[dict[str, Any], ...]


def read_trace(path: Path) -> Trace:
    """Read a rank's file. Raises OSError, or ValueError where it makes no sense; events that make none are left out."""
    try:
        with open_run_file(path) as file, gzip.open(file) as packed:
            text = packed.read(LARGEST + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(text) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 30} GiB")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise ValueError("no traceEvents")
    base = content.get("baseTimeNanoseconds", 0)
    return Trace(base if type(base) is int else 0, tuple(filter(is_event, events)))


def is_event(event: Any) -> bool:
    """Whether this is an event as the format has them."""
    if not isinstance(event, dict) or not isinstance(event.get("name"), str) or not isinstance(event.get("ph"), str):
        return False
    if not all(isinstance(event.get(name, 0), int | str) for name in ("pid", "tid")):
        return False
    if event["ph"] == "M":
        return isinstance(event.get("args", {}), dict)
    return is_time(event.get("ts")) and (event["ph"] != "X" or (is_time(event.get("dur")) and event["dur"] >= 0))


def is_time(value: Any) -> bool:
    """Whether one can count with it."""
    return type(value) in (int, float) and math.isfinite(value)


def of_kind(events: Iterable[Mapping[str, Any]], *categories: str) -> Iterator[Mapping[str, Any]]:
    """The events with a duration of these categories."""
    return (event for event in events if event["ph"] == "X" and event.get("cat") in categories)


def is_in_flight(event: Mapping[str, Any]) -> bool:
    """Whether a CPU's event is a collective that others may overlap; those do not nest as calls of functions do."""
    return event["ph"] == "X" and event.get("cat") not in KERNELS and event["name"].startswith(IN_FLIGHT)


def is_nccl(event: Mapping[str, Any]) -> bool:
    """Whether a kernel is a collective's."""
    return str(event["name"]).lower().startswith(("nccl", "void nccl"))


def exchanges_values(event: Mapping[str, Any]) -> bool:
    """Whether a collective in flight carries numbers of the model, as far as the trace shows it."""
    arguments = event.get("args")
    types = arguments.get("Input type") if isinstance(arguments, dict) else None
    flat = types if isinstance(types, list) else []
    return not flat or WHOLE_NUMBERS not in json.dumps(flat)


def packed(head: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> bytes:
    """A trace as gzip, made piece by piece: those of many ranks are large."""
    buffer = BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=4, mtime=0) as file:
        file.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [')
        for number, event in enumerate(events):
            file.write((b",\n" if number else b"\n") + json.dumps(event, allow_nan=False).encode())
        file.write(b"\n]}\n")
    return buffer.getvalue()


Spans = Sequence[tuple[float, float]]  # sorted pairs of begin and end that do not touch


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """All that any of them covers."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif begin < end:
            joined.append((begin, end))
    return joined


def common(one: Spans, other: Spans) -> Spans:
    """What two unions both cover."""
    found, here, there = [], 0, 0
    while here < len(one) and there < len(other):
        begin, end = max(one[here][0], other[there][0]), min(one[here][1], other[there][1])
        if begin < end:
            found.append((begin, end))
        if one[here][1] < other[there][1]:
            here += 1
        else:
            there += 1
    return found


def without(one: Spans, other: Spans) -> Spans:
    """What a union covers and another does not."""
    if not one:
        return []
    edges = [(one[0][0], one[0][0]), *other, (one[-1][1], one[-1][1])]
    gaps = [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]
    return common(one, gaps)


def length(spans: Spans) -> float:
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
