"""A rank's stack dump: its stack, and the collectives that it began. Made from its watcher's answer; pure.

Strings come from somebody's program: they are cut to a length, and whoever prints them makes them printable.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway.launch.verdict.cause import other_store
from slipway.process.tree import STATES

TEXT, DEPTH, CALLS = 200, 30, 20  # characters of a name, frames of a stack, the newest collectives of a rank
SEND, NO_DUMP = "send", "left no dump"
UNKNOWN = {"does not answer", "has no watcher", f"is {STATES['D']}", NO_DUMP}
LATEST = 4e9  # Unix seconds of a time that makes sense, in 2096
# Of which is told, and of how many runs their ranks may be: it goes into a message of the rendezvous.
# Jobs with data, tensor, pipeline and expert parallelism have thirteen groups on a rank (Megatron).
GROUPS, RUNS = 64, 64
LIBRARY = re.compile(r"^<frozen|/lib(64)?/python3[^/]*/")  # the standard one, and what is installed
WAITING = "/torch/distributed/distributed_c10d.py"
# Lightning's barrier without an end (rank_zero_first) calls the C++ of monitored_barrier itself.
LIGHTNING = re.compile(r"/lightning(_fabric|/fabric)/utilities/distributed\.py$")


@dataclass(frozen=True)
class Frame:
    """A place in a program."""

    file: str
    line: int
    function: str

    @property
    def users(self) -> bool:
        """Whether it is of the user's program: not of the standard library, nor installed."""
        return not LIBRARY.search(self.file)

    def __str__(self) -> str:
        """How people read it."""
        return f"{Path(self.file).name}:{self.line} {self.function}()"


@dataclass(frozen=True)
class Call:
    """A collective that a rank began, the `number`-th of its process group, at `since` (Unix seconds).

    `done`: nobody waits for it any more; `started`: its GPU is known to have started it; `peer`: of a send or a recv the rank at
    its other end.
    """

    group: str
    number: int
    name: str
    shape: str
    since: float
    done: bool
    started: bool = False
    peer: int | None = None

    @property
    def sends(self) -> bool:
        """Whether it is a send."""
        return self.name == SEND

    def __str__(self) -> str:
        """How people read it."""
        if self.peer is not None:
            return f"{self.name} {'to' if self.sends else 'from'} rank {self.peer}"
        return f"{self.name} #{self.number}"


@dataclass(frozen=True)
class Group:
    """A process group that a rank is a member of. `begun`: the number of the collective that it began last in it.

    `runs`: its ranks, as runs of first, last and step, which thousands of ranks are few of; none where nobody knows them.
    """

    name: str
    runs: tuple[tuple[int, ...], ...]
    begun: int = 0

    @property
    def ranks(self) -> tuple[range, ...]:
        """Its ranks, run by run."""
        return tuple(range(first, last + 1, step or 1) for first, last, step in self.runs)

    def __post_init__(self) -> None:
        """ValueError where a run is none."""
        if any(len(run) != 3 or min(run) < 0 for run in self.runs):
            raise ValueError("not a run of ranks")


@dataclass(frozen=True)
class StackDump:
    """Where a rank is. `state`: what is odd about its process, as people say it; `frames`: of its main thread, innermost
    first; `groups`: those of its calls, and some more; `cores`: how many it kept busy since the job stood still; `store`: that it
    waits for a store that is not torchrun's, and what to do, as `other_store` says it; empty where it does not.
    """

    rank: int
    node_rank: int
    state: str = ""
    frames: tuple[Frame, ...] = ()
    calls: tuple[Call, ...] = ()
    groups: tuple[Group, ...] = ()
    cores: float = 0.0
    store: str = ""

    @property
    def name(self) -> str:
        """Rank and node, where that is known."""
        return f"rank {self.rank}" + (f" (node {self.node_rank})" if self.node_rank >= 0 else "")

    @property
    def place(self) -> str:
        """Where it is, in terms of the user's program: its innermost line there."""
        frame = next((frame for frame in self.frames if frame.users), next(iter(self.frames), None))
        if frame is None:
            return self.state or (f"last began {self.calls[-1]}" if self.calls else "has nothing unfinished")
        return f"is at {frame}" + (f", and {self.state}" if self.state else "")

    @property
    def known(self) -> bool:
        """Whether it is known what it does; else it may wait like the others."""
        return bool(self.frames) or self.state not in UNKNOWN

    @property
    def waits_in(self) -> str:
        """The function of torch.distributed that it is in, by its stack: recv, monitored_barrier, …; empty where in none."""
        inside = [frame.function for frame in self.frames if frame.file.endswith(WAITING)]
        if not inside and self.frames and LIGHTNING.search(self.frames[0].file):
            return "barrier"
        return inside[-1] if inside else ""

    def lines(self, *, whole: bool = False) -> list[str]:
        """All of it for people; the innermost frame comes last, as Python has it. `whole`: with every frame of libraries."""
        pending = "".join(f"; waits in {call} since {clock(call.since)}" for call in self.pending[:1])
        lines = [f"  {self.name} {self.place}{pending}"]
        left_out = 0
        for depth, frame in reversed([*enumerate(self.frames)]):
            if whole or frame.users or depth == 0:
                lines += [f"    … {left_out} more"] if left_out else []
                lines.append(f"    {frame.file}:{frame.line} {frame.function}()")
                left_out = 0
            else:
                left_out += 1
        return lines

    def shorter(self) -> "StackDump":
        """The same with fewer frames and collectives, the less important ones left out, or else with fewer groups."""
        oldest = oldest_of(self.calls)
        calls = [call for call in self.calls if call in oldest]
        if len(calls) < len(self.calls) or self.frames:
            return replace(self, frames=self.frames[: len(self.frames) // 2], calls=tuple(calls))
        groups = self.groups[: len(self.groups) // 2]
        known = {group.name for group in groups}
        return replace(self, calls=tuple(call for call in calls if call.group in known), groups=groups)

    @property
    def pending(self) -> tuple[Call, ...]:
        """The collectives that it began and that are not done, in their order."""
        return tuple(call for call in self.calls if not call.done)

    def entry(self, group: str, number: int) -> Call | None:
        """What it began as the collective of this number."""
        return next((call for call in self.calls if (call.group, call.number) == (group, number)), None)


def clock(seconds: float) -> str:
    """A moment (Unix seconds) of today."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(min(max(seconds, 0.0), LATEST)))


def runs_of(ranks: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranks as runs of first, last and step."""
    runs: list[tuple[int, int, int]] = []
    for rank in sorted(set(ranks)):
        first, last, step = runs[-1] if runs else (rank, rank, 0)
        if runs and (first == last or rank == last + step):
            runs[-1] = (first, rank, rank - last)
        else:
            runs.append((rank, rank, 0))
    return tuple(runs)


def read_stack_dump(
    rank: int, node_rank: int, answer: Mapping[str, Any], cores: float = 0.0, state: str = ""
) -> StackDump:
    """A rank's stack dump from its watcher's answer to `all`, or from py-spy. Raises ValueError if that makes no sense."""
    try:
        members = {str(name)[:TEXT]: tuple(map(_whole, ranks)) for name, ranks in answer["members"].items()}
        last = {str(name)[:TEXT]: _whole(number) for name, number in answer["last"].items()}
        calls = [_read_call(call) for call in answer["begun"]]
        main: Sequence[Any] = next((frames for _, is_main, frames in answer["threads"] if is_main), [])
        addresses = [str(part)[:TEXT] for part in answer.get("store", [])]  # py-spy does not see it
        store = other_store(addresses[0], addresses[1], ", port ".join(addresses[2:])) if len(addresses) == 4 else ""
        frames = tuple(Frame(str(file)[-TEXT:], _whole(line), str(function)[:TEXT]) for file, line, function in main)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not an answer of a watcher: {error!r}") from None
    # What a rank waits in comes first, then what was used of late: the others' collectives are not judged.
    kept = tuple(dict.fromkeys((*oldest_of(calls), *calls[-CALLS:])))
    order = [call.group for call in sorted(kept, key=lambda call: (call.done, -call.since))]
    groups = [Group(name, runs_of(members.get(name, ())), last.get(name, 0)) for name in dict.fromkeys([*order, *last])]
    told = tuple(group for group in groups if len(group.runs) <= RUNS)[:GROUPS]
    known = {group.name for group in told}
    return StackDump(
        rank, node_rank, state, frames[:DEPTH], tuple(call for call in kept if call.group in known), told, cores, store
    )


def oldest_of(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Of calls in their order the oldest that is not done of each group and peer."""
    found: dict[tuple[str, str, int | None], Call] = {}
    for call in calls:
        if not call.done:
            found.setdefault((call.group, "" if call.peer is None else call.name, call.peer), call)
    return tuple(found.values())


def _read_call(call: Sequence[Any]) -> Call:
    group, number, name, sizes, types, since, done, started, peer = call
    shape = f"{'/'.join(map(str, types))} {'/'.join(map(str, sizes))}"[:TEXT]
    if not 0 <= since < LATEST:
        raise ValueError("a time that is none")
    peer = None if peer is None else _whole(peer)
    return Call(
        str(group)[:TEXT], _whole(number), str(name)[:TEXT], shape, float(since), bool(done), bool(started), peer
    )


def _whole(value: Any) -> int:
    """A number as the rendezvous's messages may hold it. ValueError for any other."""
    number = int(value)
    if not 0 <= number < 2**53:
        raise ValueError("a number out of range")
    return number
