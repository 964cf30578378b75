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

from slipway.train.loop.own_time import Causes, OwnTime
from slipway.train.worker.context import Context

WINDOW = 8  # steps whose median is compared: one that something else disturbed does not count
WINDOWS = 5  # that are looked at: who is slow once is no straggler
MOST = 4  # of them in which it has to be the slower one
MARGIN = 1.10  # times the median of the others: beyond that a rank is slow
UNTIMED = 2  # steps at the beginning that are slower than those that follow


class Straggler(NamedTuple):
    """A rank, and by which share of their time it is slower than the others; `seconds` more than they take, per step."""

    rank: int
    slower: float
    seconds: float

    def __str__(self) -> str:
        """How people read it."""
        return f"rank {self.rank} is {self.slower:.0%} slower than the others"


def find_straggler(windows: Sequence[Sequence[float]]) -> Straggler | None:
    """Who is persistently slower than the median of the others; None where nobody is, or too little is known.

    `windows`: of each the own seconds per step of every rank, in the order of the ranks.
    """
    if len(windows) < WINDOWS or len(windows[0]) < 2:
        return None
    typical = [median(column) for column in zip(*windows, strict=True)]
    rank = max(range(len(typical)), key=typical.__getitem__)
    others = [median(row[:rank] + row[rank + 1 :]) for row in map(list, windows)]
    ratios = [row[rank] / max(other, 1e-9) for row, other in zip(windows, others, strict=True)]
    if sum(ratio > MARGIN for ratio in ratios) < MOST or median(ratios) <= MARGIN:
        return None
    return Straggler(rank, median(ratios) - 1, max(0.0, typical[rank] - median(others)))


class Stragglers:
    """Compares the ranks of one training. Nothing waits: what is exchanged after a step is looked at after the next."""

    def __init__(self, context: Context, own_time: OwnTime, *, wanted: bool) -> None:
        """By all ranks. Not `wanted` where they do different things, and of no use to a process alone."""
        self._context, self.own_time = context, own_time
        self._active = wanted and context.side is not None
        self._causes = Causes(context.device, WINDOWS + 1)
        self._windows: deque[list[float]] = deque(maxlen=WINDOWS)
        self._under_way: tuple[list[torch.Tensor], dist.Work] | None = None
        self._steps = -UNTIMED  # since the last exchange
        self.found: Straggler | None = None

    def look(self) -> None:
        """After each step, by every rank."""
        if not self._active:
            return
        if self._under_way is not None:
            self._judge()
        self._steps += 1
        if self._steps == 0:
            self.own_time.drop()
        elif self._steps == WINDOW:
            self._begin()

    def forget(self) -> None:
        """Training ends, or begins, perhaps elsewhere; by every rank."""
        if self._under_way is not None:
            self._under_way[1].wait()
        self._under_way, self.found, self._steps = None, None, -UNTIMED
        self._windows.clear()
        self.own_time.drop()

    def _begin(self) -> None:
        self._steps = 0
        self._causes.look(self.own_time.data)
        own = torch.tensor([self.own_time.take()], dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in range(self._context.place.world_size)]
        self._under_way = parts, dist.all_gather(parts, own, group=self._context.side, async_op=True)

    def _judge(self) -> None:
        assert self._under_way is not None
        parts, work = self._under_way
        work.wait()
        self._under_way = None
        row = [float(part) for part in parts]
        if any(map(math.isnan, row)):
            return
        self._windows.append(row)
        before, self.found = self.found, find_straggler(self._windows)
        rank = self._context.place.rank
        self._context.note_own_time(row[rank], self.found and (*self.found[:2], self.found.seconds * WINDOW))
        if self.found and rank == self.found.rank and (before is None or before.rank != rank):
            self._tell(self.found)

    def _tell(self, found: Straggler) -> None:
        """Say on the slow rank itself what is known."""
        where = f"on node {self._context.place.node_rank} ({socket.gethostname()})"
        known = self._causes.text() or "`slipway check` on its node may tell why"
        steps = WINDOW * WINDOWS
        self._context.warn(f"warning: all others wait: {found}, {where}, in the last {steps} steps; {known}")
