"""Lines that several ranks print alike, shown once with the ranks in front. Each rank's lines keep their order.

Lines wait for others like them for as long as NEAR. What a rank said of its own before a line that it shares comes before that.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slipway.inspect.logs import PARENTS, Line
from slipway.launch.rendezvous.membership import CLOCK_SECONDS
from slipway.protocol.printable import rank_ranges

NEAR = CLOCK_SECONDS  # s between two that count as the same line: ranks are not in step to the millisecond, nor clocks
MOST = 8_000_000  # characters of lines that wait
DEEPEST = 50  # lines that come before one another so that a line can be shared; each is a call within a call
Place = tuple[int, int]  # node and rank


@dataclass
class Shared:
    """A line with the ranks that printed it, or the nodes where it was no rank; the time is that of the oldest."""

    line: Line
    places: list[int] = field(default_factory=list)

    @property
    def who(self) -> str:
        """`rank 3`, `ranks 0-3, 7`, `torchrun on node 1`."""
        parent = next((f"{name} on " for name, rank in PARENTS.items() if rank == self.line.rank), "")
        return f"{parent}{'node' if parent else 'rank'}{'s' if len(self.places) > 1 else ''} {rank_ranges(self.places)}"


class Collapse:
    """Takes lines in the order of time and gives them out, those that are alike as one."""

    def __init__(self) -> None:
        self._arrived = deque[Line]()  # also what is out already
        self._waiting: dict[Place, deque[Line]] = defaultdict(deque)
        self._alike: dict[tuple[str, int], Counter[Place]] = defaultdict(
            Counter
        )  # how many wait of each text, by place
        self._held = set[Place]()  # those with a part in a line that is about to come out
        self._characters = 0

    def take(self, line: Line) -> Iterator[Shared]:
        """Take a line in; what no later line can join comes out."""
        while (oldest := self._oldest()) and self._is_past(oldest, line):
            yield from self._give(oldest)
        self._arrived.append(line)
        self._waiting[_place(line)].append(line)
        self._alike[_key(line)][_place(line)] += 1
        self._characters += _cost(line)

    def settle(self, now: float) -> Iterator[Shared]:
        """Give out what has waited long enough by the time of day (Unix seconds); all of it where that is infinite."""
        while (oldest := self._oldest()) and not abs(now - oldest.time) <= NEAR:
            yield from self._give(oldest)

    def _oldest(self) -> Line | None:
        while self._arrived and self._arrived[0] is not self._next(_place(self._arrived[0])):
            self._arrived.popleft()
        return self._arrived[0] if self._arrived else None

    def _next(self, place: Place) -> Line | None:
        return self._waiting[place][0] if place in self._waiting else None

    def _is_past(self, waiting: Line, newest: Line) -> bool:
        later = newest.attempt != waiting.attempt or newest.time - waiting.time > NEAR
        return later or self._characters > MOST

    def _give(self, line: Line, depth: int = 0) -> list[Shared]:
        """A rank's next line, with all that can be shown as one, behind what these ranks said before it."""
        out, shared, key, held = list[Shared](), Shared(line), _key(line), set[Place]()
        for place in (_place(line), *self._alike[key]):
            while place not in self._held and (first := self._next(place)) and self._alike[key][place]:
                if _key(first) == key:
                    shared.places.append(self._pop(place))
                    self._held.add(place)
                    held.add(place)
                elif depth < DEEPEST:
                    out += self._give(first, depth + 1)
                else:
                    break
        self._held -= held
        if not self._alike[key].total():
            del self._alike[key]
        return [*out, shared]

    def _pop(self, place: Place) -> int:
        line = self._waiting[place].popleft()
        if not self._waiting[place]:
            del self._waiting[place]
        self._alike[_key(line)][place] -= 1
        self._characters -= _cost(line)
        return line.node if line.rank < 0 else line.rank


def _place(line: Line) -> Place:
    return line.node, line.rank


def _key(line: Line) -> tuple[str, int]:
    """Equal for lines that may be shown as one."""
    return line.text, min(line.rank, 0)


def _cost(line: Line) -> int:
    return len(line.text) + 500  # what a line takes beside its text


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
