"""Which rank makes all others wait: their own times per step (own_time.py) are compared every few steps, beside the training."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from slipway.train.observe.own_time import Causes, OwnTime
from slipway.train.worker.context import Context

WINDOW = 8  # steps whose median is compared, or more: one that something else disturbed does not count
LEAST = 0.2  # s that they take together: short steps are compared less often, so that it costs next to nothing
WINDOWS = 5  # that are looked at: who is slow once is no straggler
MOST = 4  # of them in which it has to be the slower one
MARGIN = 1.08  # times the median of the others: beyond that a rank is slow; one that takes a tenth more surely is
STAYS = 1.05  # the same for who was found before: nobody comes and goes
WORTH = 0.02  # of a step: where all wait for less, nobody minds
UNTIMED = 2  # steps at the beginning that are slower than those that follow
LASTS = 30.0  # s for which all have to wait for the same rank before it warns, and before a slow processor counts
SAID = 600.0  # s until the same rank says again what it knows


class Straggler(NamedTuple):
    """A rank, and by which share of their time it is slower than the others; `seconds` more than they take, per step."""

    rank: int
    slower: float
    seconds: float

    def __str__(self) -> str:
        """How people read it."""
        return f"rank {self.rank} is {self.slower:.0%} slower than the others"


def find_straggler(
    windows: Sequence[Sequence[float]], step: float = 0.0, before: Straggler | None = None
) -> Straggler | None:
    """Who is persistently slower than the median of the others; None where nobody is, or too little is known.

    `windows`: of each the own seconds per step of every rank, in the order of the ranks; `step`: seconds of a whole step;
    `before`: who was found last.
    """
    if len(windows) < WINDOWS or len(windows[0]) < 2:
        return None
    typical = [median(column) for column in zip(*windows, strict=True)]
    rank = max(range(len(typical)), key=typical.__getitem__)
    others = [median(row[:rank] + row[rank + 1 :]) for row in map(list, windows)]
    ratios = [row[rank] / max(other, 1e-9) for row, other in zip(windows, others, strict=True)]
    margin = STAYS if before and before.rank == rank else MARGIN
    more = typical[rank] - median(others)
    if sum(ratio > margin for ratio in ratios) < MOST or median(ratios) <= margin or more <= WORTH * step:
        return None
    return Straggler(rank, median(ratios) - 1, more)


def level(own: Sequence[float], steady: Sequence[float]) -> list[float]:
    """Seconds per step of each rank as if the processors of all were as fast, and as free, as the median."""
    processors = median(whole - part for whole, part in zip(own, steady, strict=True))
    return [part + processors for part in steady]


class Stragglers:
    """Compares the ranks of one training. Nothing waits: what is exchanged after a step is looked at after the next."""

    def __init__(self, context: Context, group: dist.ProcessGroup | None, own_time: OwnTime) -> None:
        """By all ranks of `group`, a gloo group; None where there is nothing to compare."""
        self._context, self._group, self.own_time = context, group, own_time
        self._now = own_time.clock.host
        self._causes = Causes(context.device, WINDOWS + 1, self._now)
        self._windows: deque[tuple[list[float], list[float]]] = deque(maxlen=WINDOWS)  # of each `own` and `steady`
        self._under_way: tuple[list[torch.Tensor], dist.Work] | None = None
        # How many steps it has, and how many there were since the last exchange.
        self._window, self._steps = WINDOW, -UNTIMED
        self._since = 0.0  # when that was
        self._own: float | None = None  # s of a step, as far as that is known
        self._named = -1, 0.0  # who was slowest, and since when it is the same
        self._said = -SAID  # when this rank warned last
        self.found: Straggler | None = None

    def check(self) -> None:
        """After each step, by every rank."""
        if self._group is None:
            return
        if self._under_way is not None:
            self._judge()
        self._steps += 1
        if self._steps == 0:
            self.own_time.drop()
            self._since = self._now()
        elif self._steps == self._window:
            self._begin()

    def forget(self) -> None:
        """Training ends, or begins, perhaps elsewhere; by every rank."""
        if self._under_way is not None:
            self._under_way[1].wait()
        self._under_way, self._steps = None, -UNTIMED
        self._causes.forget()
        self.own_time.drop()
        self._start_anew()

    def _start_anew(self) -> None:
        self._windows.clear()
        if self._group is not None:
            self.found, self._named = None, (-1, 0.0)
            self._context.note_own_time(self._own)

    def _begin(self) -> None:
        now = self._now()
        whole, self._since, self._steps = (now - self._since) / self._window, now, 0
        taken = self.own_time.take()
        self._causes.sample(taken.data * self._window)
        mine = torch.tensor([taken.own, taken.steady, whole], dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self._context.place.world_size)]
        self._under_way = parts, dist.all_gather(parts, mine, group=self._group, async_op=True)

    def _judge(self) -> None:
        assert self._under_way is not None
        parts, work = self._under_way
        work.wait()
        self._under_way = None
        own, steady, wholes = map(list, zip(*(part.tolist() for part in parts), strict=True))
        passed, self._window = self._window, max(WINDOW, math.ceil(LEAST / max(median(wholes), 1e-4)))
        rank = self._context.place.rank
        self._own = None if math.isnan(own[rank]) else own[rank]
        if any(map(math.isnan, own)):
            self._start_anew()
            return
        self._windows.append((own, steady))
        self.found = self._find(median(wholes))
        if self.found:
            slow = self.found
            self._context.note_own_time(self._own, slow.rank, slow.slower, slow.seconds * passed)
            self._tell(slow)
        else:
            self._context.note_own_time(self._own)

    def _find(self, step: float) -> Straggler | None:
        """Who is slow whatever its processor does, or has been for a while."""
        sure = find_straggler([level(*window) for window in self._windows], step, self.found)
        seen = sure or find_straggler([own for own, _ in self._windows], step, self.found)
        if seen is None:
            self._named = -1, 0.0
        elif seen.rank != self._named[0]:
            self._named = seen.rank, self._now()
        return sure or (seen if seen and self._lasts() else None)

    def _lasts(self) -> bool:
        """Whether it is the same rank for a while."""
        return self._now() - self._named[1] >= LASTS

    def _tell(self, found: Straggler) -> None:
        """Say on the slow rank itself what is known, once it lasts, and now and then."""
        place, now = self._context.place, self._now()
        if found.rank != place.rank or not self._lasts() or now - self._said < SAID:
            return
        self._said = now
        where = f"on node {place.node_rank} ({socket.gethostname()})"
        known = self._causes.text() or "to find the cause, run `slipway check` on its node"
        steps = self._window * WINDOWS
        self._context.warn(f"warning: all other ranks wait: {found}, {where}, in the last {steps} steps; {known}")
