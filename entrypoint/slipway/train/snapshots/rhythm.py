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
        self._costs: deque[float] = deque(maxlen=LAST)  # s that one took of this rank's training
        self._paces: deque[float] = deque(maxlen=LAST)  # s of a step
        self._since = step, time.perf_counter()
        self.due: float = step + 1 if every == "auto" else math.inf if every == 0 else next_multiple(int(every), step)

    def measure(self, step: int, cost: float) -> tuple[float, float]:
        """What a snapshot costs and a step takes on this rank, at a step that is due; `cost` was the last one's, 0 before."""
        if cost:
            self._costs.append(cost)
        before, then = self._since
        self._paces.append((time.perf_counter() - then) / max(1, step - before))
        return (median(self._costs) if self._costs else 0.0), median(self._paces)

    def go_on(self, step: int, cost: float, pace: float, kept: bool) -> None:
        """Choose the next step, by the dearest rank's cost and rank 0's pace; none where no node has `kept` anything."""
        self._since = step, time.perf_counter()
        if not kept:
            self.due = math.inf
        elif self.every == "auto":
            self.due = step + max(1, math.ceil(cost / (SHARE * pace)))
        else:
            self.due = next_multiple(int(self.every), step)


def next_multiple(every: int, step: int) -> int:
    """The first multiple after `step`."""
    return (step // every + 1) * every
