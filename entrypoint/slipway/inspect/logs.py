"""The logs of a run's ranks, read as one stream of lines in the order of their times; which of the lines are wanted; and the
lines above and below each attempt that say how it ended.

Only a piece of each file is held, and a file is open only while a piece is read: logs may be gigabytes, and there may be
thousands of them.
"""

import calendar
import datetime
import heapq
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.attempt.child import AGENT_LOG, SPAWN_LOG
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.records import NodeEnd
from slipway.launch.verdict.block import ENDINGS
from slipway.launch.verdict.verdict import CODES
from slipway.protocol.files import open_run_file
from slipway.protocol.outcomes import GOOD
from slipway.protocol.printable import printable, rank_ranges

PIECE = 65_536  # bytes read of a file at a time
LONGEST = 1_048_576  # bytes after which a line without an end is taken in pieces
POLL = 0.5  # s between polls for more
# What starts a node's ranks has a log, too; it counts as a rank below 0.
PARENTS = MappingProxyType(
    {name.removesuffix(".log"): -number for number, name in enumerate((AGENT_LOG, SPAWN_LOG), 1)}
)

_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
_HEADER = re.compile(rb"--- attempt (\d{1,9})(?:, (.*))? ---")


class Line(NamedTuple):
    """A line of a log; lines compare in the order in which they are shown.

    `time` (Unix seconds) orders; where a line has none of its own, `stamp` is empty, and it is that of the line above
    with `untimed` counting on, or infinite in what the parent of the ranks printed: that comes after its attempt.
    """

    attempt: int
    time: float
    untimed: int
    node: int
    rank: int
    stamp: str
    text: str


class LogFile:
    """The log of one rank, or of what started a node's ranks, read from its beginning on as it grows."""

    def __init__(self, path: Path, node: int, rank: int) -> None:
        self.path, self.node, self.rank = path, node, rank
        self._offset, self._rest = 0, b""
        self._attempt, self._untimed = 1, 0
        self._time = math.inf if rank < 0 else 0.0

    def lines(self, *, over: bool) -> Iterator[Line]:
        """The lines that have come since the last call; where it is `over` also one without an end."""
        while piece := self._read():
            *whole, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > LONGEST:
                whole, self._rest = [*whole, self._rest], b""
            yield from self._understand(whole)
        if over and self._rest:
            whole, self._rest = [self._rest], b""
            yield from self._understand(whole)

    def _read(self) -> bytes:
        with suppress(OSError), open_run_file(self.path) as file:  # it may be gone meanwhile
            file.seek(self._offset)
            piece = file.read(PIECE)
            self._offset += len(piece)
            return piece
        return b""

    def _understand(self, raw_lines: list[bytes]) -> Iterator[Line]:
        for raw in raw_lines:
            if raw.startswith(b"--- ") and (header := _HEADER.fullmatch(raw)):
                self._attempt = int(header[1])
                self._note(_header_time(header[2]))
                continue
            stamp, text = "", raw
            if _STAMP.match(raw) and (moment := _stamp_time(raw[:24].decode())) is not None:
                stamp, text = raw[:24].decode(), raw[25:]
                self._note(moment)
            else:
                self._untimed += 1
            yield Line(self._attempt, self._time, self._untimed, self.node, self.rank, stamp, readable(text))

    def _note(self, moment: float) -> None:
        self._untimed = 0
        if self.rank >= 0:
            self._time = moment


def _stamp_time(stamp: str) -> float | None:
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(stamp).timestamp()
    return None


def _header_time(text: bytes | None) -> float:
    """The time in the line above an attempt, 0 where it makes no sense."""
    with suppress(ValueError):
        return calendar.timegm(time.strptime((text or b"").decode(errors="replace"), "%Y-%m-%d %H:%M:%S UTC"))
    return 0.0


def readable(raw: bytes) -> str:
    """A line as a terminal would leave it, without what would do something to the terminal."""
    text = raw.decode(errors="replace")
    if text.isprintable():
        return text
    return printable(text.rstrip("\r").rpartition("\r")[2])  # of a progress bar the newest state


def find_logs(run: Path) -> list[LogFile]:
    """All logs of ranks, and of what started them, in a run directory."""
    logs = [(log, PARENTS.get(log.path.stem, log.rank)) for log in RunDirectory(run).logs()]
    found = [LogFile(log.path, log.node_rank, rank) for log, rank in logs if rank is not None]
    return sorted(found, key=lambda log: (log.node, log.rank))


def tell_elsewhere(run: Path) -> str:
    """Which nodes' logs are not in this directory, and where to look for them; empty where all are here."""
    here = {log.node for log in find_logs(run)}
    if not here:
        return f"there are no logs in {run} so far."
    nodes = max(RunDirectory(run).node_counts())
    missing = set(range(nodes)) - here
    if not missing:
        return ""
    return (
        f"the logs of node{'s' if len(missing) > 1 else ''} {rank_ranges(missing)} are not here. Where the nodes do not share "
        f"the run directory, each has its own on its own disk: look for {run.name} there."
    )


def tell_extent(run: Path) -> str:
    """What there is to choose from: `ranks 0-7 and attempts 1, 2`."""
    ranks = {log.rank for log in find_logs(run) if log.rank >= 0}
    extents = {"rank": ranks, "attempt": range(1, RunDirectory(run).record.attempt + 1)}
    return " and ".join(
        f"{what}{'s' if len(numbers) > 1 else ''} {rank_ranges(numbers)}"
        for what, numbers in extents.items()
        if numbers
    )


def read_log_lines(
    run: Path, takes_file: Callable[[int, int], bool], takes: Callable[[Line], bool], going_on: Callable[[], bool]
) -> Iterator[Line | None]:
    """All lines that are wanted, merged; `takes_file` gets a file's node and rank.

    Yields None each time that all existing lines have been read. Then waits for new lines, until `going_on` returns false.
    """
    files: dict[Path, LogFile] = {}
    while True:
        over = not going_on()  # asked before reading, so that nothing is missed
        for log in find_logs(run):
            if takes_file(log.node, log.rank):
                files.setdefault(log.path, log)
        yield from heapq.merge(*(filter(takes, log.lines(over=over)) for log in files.values()))
        yield None
        if over:
            return
        time.sleep(POLL)


Numbers = tuple[range, ...]  # empty: any


def parse_numbers(text: str) -> Numbers:
    """`0,3-5` as ranges. Raises ValueError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{text!r} is not a list of numbers; write for example 0,3-5")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


# The lines above stacks: of an exception, of a process that was asked or crashed (faulthandler). torch puts [rankN] in front.
_STACK = re.compile(r"\(most recent call (last|first)\):?$")
_RANK = re.compile(r"^\[rank\d+\]:[ ]?")
_FAILURE = re.compile(
    r"\w(?:Error|Exception)\b|\bNCCL WARN\b|(?i:\b(?:error:|fatal\b|fail(?:ed|ure)\b|abort(?:ed|ing)\b|killed\b|panic\b)"
    r"|\bexception\b|out of memory|segmentation fault|core dumped|no space left|timed out)"
)


class Failures:
    """Recognises lines that belong to a stack or look like a failure. It is given each rank's lines in their order."""

    def __init__(self) -> None:
        self._within: dict[tuple[int, int], bool] = {}  # by place whether the stack ends with the exception's own line

    def take(self, line: Line) -> bool:
        """Whether the line is one of them."""
        text, place = _RANK.sub("", line.text), (line.node, line.rank)
        if stack := _STACK.search(text):
            self._within[place] = stack[1] == "last"
            return True
        if place in self._within:
            if not text or text[0].isspace():
                return True
            if self._within.pop(place):
                return True
        return bool(_FAILURE.search(text))


@dataclass(frozen=True)
class Wanted:
    """What was asked for; everything by default. `since` and `until` are Unix seconds."""

    ranks: Numbers = ()
    nodes: Numbers = ()
    attempts: Numbers = ()
    pattern: re.Pattern[str] = re.compile("")
    since: float | None = None
    until: float | None = None
    failures: Failures | None = None

    def takes_file(self, node: int, rank: int) -> bool:
        """Whether the log of this node and rank can have lines that are wanted."""
        return _among(node, self.nodes) and _among(rank, self.ranks)

    def takes(self, line: Line) -> bool:
        """Whether a line is wanted; a line without a time is not where times are asked for."""
        wanted = self.failures.take(line) if self.failures else True
        if self.since is not None or self.until is not None:
            within = (self.since or 0.0) <= line.time <= (self.until or float("inf"))
            wanted = wanted and bool(line.stamp) and within
        return wanted and _among(line.attempt, self.attempts) and bool(self.pattern.search(line.text))


def _among(number: int, numbers: Numbers) -> bool:
    return not numbers or any(number in part for part in numbers)


def heading(run: Path, attempt: int) -> str:
    """The line above an attempt, with the reason for it: how the one before ended, where that is known."""
    before = read_endings(run).get(attempt - 1)
    return f"--- attempt {attempt}{f' (attempt {attempt - 1} ended: {before})' if before else ''} ---"


def closing(run: Path, attempt: int) -> str:
    """The line below the last attempt of a run that is over; empty for any other."""
    ending = read_endings(run).get(attempt) if RunDirectory(run).outcome.attempt == attempt else None
    return f"--- attempt {attempt} ended: {ending} ---" if ending else ""


def read_endings(run: Path) -> dict[int, str]:
    """How each attempt ended: `node 1 (gpu08): no heartbeat for 30 s`. What is damaged is left out."""
    ends = RunDirectory(run).ends
    return {number: describe(end)[:1000] for number, end in ends.items() if end.word in CODES}


def describe(end: NodeEnd) -> str:
    """How an attempt ended, in a line."""
    if end.word in GOOD:
        return f"{ENDINGS[end.word]}{end.evidence and f': {end.evidence}'}"
    return f"{end.place}: {end.evidence or ENDINGS[end.word]}"
