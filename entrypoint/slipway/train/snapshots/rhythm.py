"""At which steps snapshots are taken into memory: as often as costs next to nothing."""

from __future__ import annotations

import math
import time
from collections import deque
from statistics import median

SHARE = 0.01  # of the time that snapshots in memory may cost
LAST = 3  # measurements that count: one that a busy machine spoilt does no harm


class Rhythm:
    """The steps of snapshots in memory: every so many, or as often as SHARE allows. The same on all ranks."""

    def __init__(self, every: str | int, step: int) -> None:
        """Begin at `step`. `every`: steps, 0 for none at all, or `auto`."""
        self.every = every
        self.exchanging = 0.0  # s that this rank's last exchange took, with what it waited there for others
        self.copying = 0.0  # s for which its last snapshot held training up behind that
        self._costs: deque[float] = deque(maxlen=LAST)  # s that one took of training
        self._paces: deque[float] = deque(maxlen=LAST)  # s of a step
        self._since = step, time.perf_counter()
        self.due: float = step + 1 if every == "auto" else math.inf if every == 0 else next_multiple(int(every), step)

    def pace(self, step: int) -> float:
        """The seconds of a step on this rank, of those since the last snapshot."""
        before, then = self._since
        return (time.perf_counter() - then) / max(1, step - before)

    def go_on(self, step: int, cost: float, pace: float, kept: bool) -> None:
        """Choose the next step, by what the last snapshot cost and a step's pace; none where no node has `kept` anything.

        The numbers are the same on all ranks; a cost of 0 is none that was measured.
        """
        self._since = step, time.perf_counter()
        if cost:
            self._costs.append(cost)
        self._paces.append(pace)
        if not kept:
            self.due = math.inf
        elif self.every == "auto":
            cost = median(self._costs) if self._costs else 0.0
            self.due = step + max(1, math.ceil(cost / (SHARE * median(self._paces))))
        else:
            self.due = next_multiple(int(self.every), step)


def next_multiple(every: int, step: int) -> int:
    """The first multiple after `step`."""
    return (step // every + 1) * every
