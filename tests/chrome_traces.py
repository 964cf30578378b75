"""Traces as torch's profiler writes them, made up, and the rules of the format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PID = 4000  # of rank 0


def span(name: str, begin: float, end: float, cat: str = "cpu_op", tid: int | str = 7, **more: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": begin, "dur": end - begin, **more}


def flying(begin: float, end: float, kind: str = "float", name: str = "gloo:all_reduce") -> Event:
    return span(name, begin, end, args={"Input Dims": [[8]], "Input type": [kind]})


def write_traces(
    folder: Path,
    ranks: Sequence[Sequence[Event]],
    offsets: Sequence[int] = (),
    base: int = 1_000_000_000,
    **clocks: Any,
) -> Path:
    """The files of a trace. The clock of each rank is ahead by its offset (nanoseconds), and so are its times."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for rank, events in enumerate(ranks):
        offset = offsets[rank] if offsets else 0
        moved = [{**event, "pid": PID + rank if event["pid"] == PID else event["pid"]} for event in events]
        content = {"schemaVersion": 1, "traceEvents": moved, "baseTimeNanoseconds": base + offset}
        data = gzip.compress(json.dumps(content).encode())
        (folder / f"rank-{rank}.json.gz").write_bytes(data)
        row = {
            "rank": rank,
            "node": rank // 2,
            "host": f"n{rank // 2}",
            "pid": PID + rank,
            "bytes": len(data),
            "error": "",
        }
        rows.append({**row, "offset": offset, "spread": 1000 * rank})
    known = {"first": 11, "steps": 2, "wanted": 2, "why": "", "world_size": len(ranks), "ranks": rows}
    (folder / "clocks.json").write_text(json.dumps(known | clocks))
    return folder


def read_merged(file: Path) -> list[Event]:
    content = json.loads(gzip.decompress(file.read_bytes()))
    assert isinstance(content["traceEvents"], list)
    return content["traceEvents"]


def check_format(events: Sequence[Event]) -> None:
    """What the format of Chrome's traces demands, and its viewers: on a thread spans lie within each other or apart."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert isinstance(event["name"], str), event
        assert type(event["pid"]) is int, event
        assert type(event["tid"]) is int, event
        assert event["ph"] in set("XBEiIMstfbneCPNODvRcSTpF"), event
        if event["ph"] == "M":
            assert isinstance(event["args"], dict), event
            continue
        assert type(event["ts"]) in (int, float), event
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert type(event["dur"]) in (int, float), event
            assert event["dur"] >= 0, event
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] in "stf":
            assert isinstance(event["id"], int | str), event
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == named
    for spans in threads.values():
        around: list[float] = []
        for begin, end in sorted(spans, key=lambda one: (one[0], -one[1])):
            while around and around[-1] <= begin + 0.01:
                around.pop()
            assert not around or end <= around[-1] + 0.01, (begin, end, around)
            around.append(end)
