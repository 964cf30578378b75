"""Lines that several ranks print alike, shown once with the ranks in front. Each rank's lines keep their order.

Lines wait for others like them for as long as NEAR, in the order in which they will be shown. Where a rank said something of
its own before a line that others printed a moment earlier, that moves in front, as far as each rank's own order allows (the
reordering of Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2007).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from slipway.inspect.logs import PARENTS, Line
from slipway.launch.rendezvous.membership import CLOCK_SECONDS
from slipway.protocol.printable import rank_ranges

NEAR = CLOCK_SECONDS  # s between two that count as the same line: ranks are not in step to the millisecond, nor clocks
MOST = 8_000_000  # characters of lines that wait
FARTHEST = 1000  # lines that one may be moved past


@dataclass(eq=False)
class Shared:
    """A line with all that printed it; the first one's time counts. `number` is its place in the output.

    `before` and `behind` are its neighbours in the order of each of its ranks.
    """

    number: int
    line: Line
    places: list[int] = field(default_factory=list)  # ranks, or nodes where it was not a rank
    before: set["Shared"] = field(default_factory=set)
    behind: set["Shared"] = field(default_factory=set)

    @property
    def who(self) -> str:
        """`rank 3`, `ranks 0-3, 7`, `torchrun on node 1`."""
        parent = next((f"{name} on " for name, rank in PARENTS.items() if rank == self.line.rank), "")
        return f"{parent}{'node' if parent else 'rank'}{'s' if len(self.places) > 1 else ''} {rank_ranges(self.places)}"


@dataclass
class Alike:
    """The waiting lines of one text, oldest first; `given` counts those given out before, `seen` those of each place."""

    waiting: list[Shared] = field(default_factory=list)
    given: int = 0
    seen: dict[tuple[int, int], int] = field(default_factory=dict)


class Collapse:
    """Takes lines in the order of time and gives them out, those that are alike as one."""

    def __init__(self) -> None:
        self._waiting: dict[int, Shared] = {}
        self._alike: dict[tuple[str, int], Alike] = defaultdict(Alike)
        self._last: dict[tuple[int, int], Shared] = {}  # by place what it printed last
        self._first = self._next = self._characters = 0

    def take(self, line: Line) -> Iterator[Shared]:
        """Take a line in; what no later line can join comes out."""
        while self._waiting and self._is_past(self._waiting[self._first].line, line):
            yield self._give()
        place, alike = (line.node, line.rank), self._alike[_key(line)]
        last = self._last.get(place)
        turn = max(0, alike.seen.get(place, 0) - alike.given)
        if turn == len(alike.waiting) or not self._move_behind(alike.waiting[turn], last):
            turn = len(alike.waiting)
            alike.waiting.append(self._add(line))
        shared = alike.waiting[turn]
        alike.seen[place] = alike.given + turn + 1
        shared.places.append(line.node if line.rank < 0 else line.rank)
        if last and last.number >= self._first:  # else it is out already
            last.behind.add(shared)
            shared.before.add(last)
        self._last[place] = shared

    def _add(self, line: Line) -> Shared:
        added = self._waiting[self._next] = Shared(self._next, line)
        self._next += 1
        self._characters += _cost(line)
        return added

    def _is_past(self, waiting: Line, newest: Line) -> bool:
        later = newest.attempt != waiting.attempt or newest.time - waiting.time > NEAR
        return later or self._characters > MOST

    def _move_behind(self, shared: Shared, last: Shared | None) -> bool:
        """Bring a line behind what its new rank printed last; False where the order of other ranks forbids it."""
        if last is None or last.number < shared.number:
            return True
        if last.number - shared.number > FARTHEST:
            return False
        later = _reach(shared, lambda one: (other for other in one.behind if other.number <= last.number))
        if last in later:
            return False
        earlier = _reach(last, lambda one: (other for other in one.before if other.number > shared.number))
        moved = [*sorted(earlier, key=_number), *sorted(later, key=_number)]
        for number, one in zip(sorted(map(_number, moved)), moved, strict=True):
            one.number, self._waiting[number] = number, one
        return True

    def settle(self, now: float) -> Iterator[Shared]:
        """Give out what has waited long enough by the time of day (Unix seconds); all of it where that is infinite."""
        while self._waiting and not abs(now - self._waiting[self._first].line.time) <= NEAR:
            yield self._give()

    def _give(self) -> Shared:
        given = self._waiting.pop(self._first)
        self._first += 1
        self._characters -= _cost(given.line)
        alike = self._alike[_key(given.line)]
        alike.waiting.remove(given)
        alike.given += 1
        if not alike.waiting:
            del self._alike[_key(given.line)]
        given.before.clear()  # or each line would keep all before it in memory
        given.behind.clear()
        return given


def _key(line: Line) -> tuple[str, int]:
    """Equal for lines that may be shown as one."""
    return line.text, min(line.rank, 0)


def _cost(line: Line) -> int:
    return len(line.text) + 500  # what a line takes beside its text


def _number(shared: Shared) -> int:
    return shared.number


def _reach(start: Shared, step: Callable[[Shared], Iterable[Shared]]) -> set[Shared]:
    """All that steps lead to, with the start."""
    found, queue = {start}, [start]
    while queue:
        for one in step(queue.pop()):
            if one not in found:
                found.add(one)
                queue.append(one)
    return found


def collapse(lines: Iterable[Line | None]) -> Iterator[Shared | None]:
    """Lines that ranks share as one; None (see `read_lines`) is passed on behind those that need not wait any longer."""
    collapsing = Collapse()
    for line in lines:
        if line is None:
            yield from collapsing.settle(time.time())
            yield None
        else:
            yield from collapsing.take(line)
    yield from collapsing.settle(float("inf"))
