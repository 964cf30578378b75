"""The replicas of a training are compared now and then, beside the steps: `--verify-every`.

Each comparison is spread over three steps, so that none of them waits: the sums are taken on the device after one, exchanged
during the next, and judged after that. What is saved is compared at once, so a snapshot never holds a wrong bit that one replica
has alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from slipway.options.common import AUTO
from slipway.train.parallel.replicas import Exchange, ReplicasDifferError, are_equal, fingerprint
from slipway.train.worker.context import Context

SHARE = 0.005  # of the time of training that comparing may take where the interval is ours to choose
JITTER = 1.4  # times what it takes one rank: all wait for the slowest (two CPU ranks: 4.8 ms where 3.3 were timed)
UNTIMED, TIMED = 3, 8  # steps that are left out, and those that are timed, before it is chosen


class Verification:
    """Compares the replicas of one training."""

    def __init__(self, context: Context, tensors: Callable[[], Mapping[str, torch.Tensor]], every: int | str) -> None:
        """`tensors`: see `replicated`. `every`: steps between two comparisons, 0 for none, `auto`: as often as costs little.

        A process alone has nobody to compare with.
        """
        alone = context.side is None
        self._context, self._tensors, self._every = context, tensors, 0 if alone else every
        self._exchange = None if alone else Exchange(context.side)
        self._sums: torch.Tensor | None = None  # taken, and perhaps still on their way from the device
        self._taken = torch.cuda.Event() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._under_way: tuple[torch.Tensor, torch.Tensor, dist.Work] | None = None
        self._steps, self._since = 0, 0.0

    def look(self, step: int) -> None:
        """After each step, by every rank. Raises ReplicasDifferError, on all ranks, within three steps of a comparison."""
        if self._every == AUTO:
            self._choose()
        if not isinstance(self._every, int) or not self._every:
            return
        self._judge()
        if self._sums is not None:
            self._begin()
        if step % self._every == 0:
            self._take()

    def verify(self) -> None:
        """Compare now, by every rank, unless that was not wanted. Raises ReplicasDifferError, on all ranks."""
        if self._exchange is None or self._every == 0:
            return
        self.forget()
        self._take()
        self._begin()
        self._judge()

    def forget(self) -> None:
        """Leave what is under way to itself: training goes on from elsewhere."""
        if self._under_way is not None:
            self._under_way[2].wait()
        self._sums = self._under_way = None

    def _take(self) -> None:
        device = self._context.device
        sums = fingerprint(list(self._tensors().values()), device)
        self._sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=self._taken is not None)
        self._sums.copy_(sums, non_blocking=True)
        if self._taken is not None:
            self._taken.record()  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        assert self._exchange is not None
        assert self._sums is not None
        if self._taken is not None:
            self._taken.synchronize()
        self._under_way = (self._sums, *self._exchange.begin(self._sums))
        self._sums = None

    def _judge(self) -> None:
        if self._under_way is None:
            return
        assert self._exchange is not None
        sums, largest, work = self._under_way
        work.wait()
        self._under_way = None
        if not are_equal(largest) and (difference := self._exchange.describe(self._tensors(), sums)):
            raise ReplicasDifferError(str(difference), difference)

    def _choose(self) -> None:
        """Time some steps and a comparison, and have rank 0 choose for all how often it is made."""
        self._steps += 1
        if self._steps == UNTIMED:
            self._since = time.monotonic()
        if self._steps < UNTIMED + TIMED:
            return
        if self._taken is not None:
            torch.cuda.synchronize(self._context.device)
        per_step = (time.monotonic() - self._since) / TIMED
        began = time.monotonic()
        self._take()
        if self._taken is not None:
            self._taken.synchronize()
        taken = time.monotonic() - began
        self._begin()  # it is judged after the next step, like any other
        chosen = torch.tensor([interval(taken, per_step)])
        self._every = int(self._context.share(chosen))


def interval(cost: float, per_step: float) -> int:
    """Steps between two comparisons so that they take no more than their SHARE; both in seconds."""
    return max(1, math.ceil(JITTER * cost / (SHARE * max(per_step, 1e-6))))
