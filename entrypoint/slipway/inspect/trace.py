"""The traces of all ranks as one: ranks as processes, and all times by rank 0's clock."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway.inspect.trace_events import STEP, Trace, is_in_flight, packed, read_trace
from slipway.inspect.trace_summary import RankSummary, summarise
from slipway.launch.run_directory.directory import read_clocks
from slipway.launch.run_directory.records import TracedRank
from slipway.protocol.durable import write_whole
from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.files import MERGED_FILE, held_folder, rank_trace

EARLIER = 60_000_000_000  # nanoseconds; by so much other ranks may have begun before the first, and times stay positive
LANES = 1_000_000_000  # a thread's number from which collectives in flight are drawn
LINKED = ("s", "t", "f", "b", "n", "e")  # events that others are found by an id


@dataclass(frozen=True)
class Merged:
    """One file of all ranks. `missing` says of which ranks it has nothing, and why."""

    path: Path
    first: int
    steps: int
    wanted: int
    why: str  # what ended it before all steps were there
    spread: int  # nanoseconds, of the clock that varied most
    summaries: Sequence[RankSummary]
    missing: Sequence[str]


def merge(folder: Path) -> Merged:
    """Make one file of a folder of traces, and sum up what is in it. Raises LaunchError."""
    clocks = read_clocks(folder)
    # The profiler stops after the last step, when the next one's name has begun.
    work = Merging(folder, clocks.ranks, unfinished=f"{STEP}{clocks.first + clocks.steps + 1}")
    head: dict[str, Any] = {"displayTimeUnit": "ms", "schemaVersion": 1}
    try:
        content = packed(head, work.events())
        if not work.summaries:
            raise LaunchError(f"There is nothing to merge in {folder}: {'; '.join(work.missing)}.")
        with held_folder(folder) as held:
            write_whole(held / MERGED_FILE, content)
    except OSError as error:
        raise LaunchError(f"The merged trace cannot be written: {error}", code_of(error)) from None
    beyond = clocks.world_size - len(clocks.ranks)
    missing = [*work.missing, *([f"the traces of the last {beyond} ranks were not kept"] if beyond > 0 else [])]
    spread = max(rank.spread for rank in clocks.ranks)
    merged = folder / MERGED_FILE
    return Merged(merged, clocks.first, clocks.steps, clocks.wanted, clocks.why, spread, work.summaries, missing)


@dataclass
class Merging:
    """A merge under way: rank by rank, since all of them at once may be more than the memory holds."""

    folder: Path
    sources: Sequence[TracedRank]
    unfinished: str  # the name of what is left out
    summaries: list[RankSummary] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    origin: int | None = (
        None  # Unix nanoseconds from which times are counted: the first file's, so that they stay small
    )
    pids: int = 0  # so many are taken

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of all ranks as they stand in the merged file; notes summaries and what is missing."""
        for source in self.sources:
            if not source.bytes:
                self.missing.append(f"rank {source.rank}: {source.error or 'it recorded nothing'}")
                continue
            try:
                trace = read_trace(self.folder / rank_trace(source.rank))
            except (OSError, ValueError) as error:
                self.missing.append(f"rank {source.rank}: its trace cannot be read: {error}")
                continue
            kept = tuple(event for event in trace.events if event["name"] != self.unfinished)
            trace = replace(trace, events=kept)
            self.summaries.append(summarise(source.rank, trace.events))
            yield from self.of_rank(source, trace)

    def of_rank(self, source: TracedRank, trace: Trace) -> Iterator[dict[str, Any]]:
        """A rank's events, in the time of rank 0, with processes and threads of their own."""
        if self.origin is None:
            begins = [event["ts"] for event in trace.events if event["ph"] != "M"]
            self.origin = trace.base - source.offset + int(min(begins, default=0) * 1000) - EARLIER
        shift = (trace.base - source.offset - self.origin) / 1000
        numbers = Numbers(self.pids)
        used = {event.get("pid", 0) for event in trace.events if event["ph"] != "M"}
        lanes = Lanes()
        for event in sorted((one for one in trace.events if one["ph"] != "M"), key=lambda one: one["ts"]):
            pid, tid = event.get("pid", 0), event.get("tid", 0)
            moved = {**event, "ts": round(event["ts"] + shift, 3), "pid": numbers.process(pid)}
            if is_in_flight(event):
                moved |= {"pid": numbers.process(source.pid), "tid": lanes.take(event)}
            else:
                moved["tid"] = numbers.thread(pid, tid)
            if event["ph"] in LINKED and "id" in event:
                moved["id"] = f"{source.rank}.{event['id']}"
            if event["ph"] in "iI":
                moved["s"] = "p"  # a line through one rank, not through all
            yield moved
        for event in trace.events:
            if event["ph"] == "M" and event["name"].startswith("thread_") and event.get("pid", 0) in used:
                pid, tid = event.get("pid", 0), event.get("tid", 0)
                kept = {name: value for name, value in event.items() if name != "ts"}  # metadata hold at all times
                yield {**kept, "pid": numbers.process(pid), "tid": numbers.thread(pid, tid)}
        yield from names(source, numbers, lanes)
        self.pids += len(numbers.pids)


def names(source: TracedRank, numbers: "Numbers", lanes: "Lanes") -> Iterator[dict[str, Any]]:
    """What a rank's processes and threads are called, and in which order they stand."""
    for old, new in numbers.pids.items():
        if old == source.pid:
            label = f"rank {source.rank} (node {source.node}, {source.host})"
        else:
            label = f"rank {source.rank} {f'GPU {old}' if isinstance(old, int) else old}"
        yield metadata("process_name", new, 0, name=label)
        yield metadata("process_sort_index", new, 0, sort_index=new)
    for (pid, old), new in numbers.named.items():
        yield metadata("thread_name", numbers.pids[pid], new, name=str(old))
    for lane in range(len(lanes.free)):
        tid = LANES + lane
        yield metadata(
            "thread_name", numbers.process(source.pid), tid, name=f"collectives{f' {lane + 1}' if lane else ''}"
        )


def metadata(name: str, pid: int, tid: int, /, **arguments: Any) -> dict[str, Any]:
    """An event that names something."""
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}


class Numbers:
    """New numbers for a rank's processes, behind those that are `taken`, and for threads that have a name instead."""

    def __init__(self, taken: int) -> None:
        self.pids: dict[int | str, int] = {}
        self.named: dict[tuple[int | str, str], int] = {}
        self._taken = taken

    def process(self, pid: int | str) -> int:
        """The number of a process in the merged file."""
        return self.pids.setdefault(pid, self._taken + len(self.pids) + 1)

    def thread(self, pid: int | str, tid: int | str) -> int:
        """The number of a thread."""
        if isinstance(tid, int):
            return tid
        self.process(pid)
        return self.named.setdefault((pid, tid), LANES // 2 + len(self.named))


class Lanes:
    """Rows for collectives in flight, so many that in none of them two overlap: they are drawn as calls of functions are."""

    def __init__(self) -> None:
        self.free: list[float] = []  # from when on each is

    def take(self, event: Mapping[str, Any]) -> int:
        """The row of an event, which begins no earlier than the last one."""
        lane = next((lane for lane, free in enumerate(self.free) if free <= event["ts"]), len(self.free))
        self.free[lane:] = [event["ts"] + event["dur"], *self.free[lane + 1 :]]
        return LANES + lane
