"""At which steps a training does what costs time: every so many steps, or as often as that costs little; the same on all ranks.

What a snapshot costs changes during a training, so a `Rhythm` measures each of them. A check costs the same each time, so an
`CheckInterval` measures the first one alone, and the steps of all others are known beforehand.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from statistics import median, median_low

import torch

from slipway.options.common import AUTO
from slipway.train.worker.context import Context


def steps_in(seconds: float, pace: float) -> int:
    """Return how many steps of `pace` seconds take that long: at least one."""
    return max(1, math.ceil(seconds / max(pace, 1e-6)))


class Rhythm:
    """The steps of snapshots: each is `due` when the one before has been measured."""

    def __init__(self, every: int | str | None, step: int) -> None:
        """Start at `step`. `every`: steps, 0 for none; `auto` or None: as often as costs next to nothing."""
        self.every = every
        self._choose(step, 0.0, 1.0)

    def _choose(self, step: int, rest: float, pace: float) -> None:
        """Time steps from here on. The next snapshot is due after `rest` seconds of steps that take `pace` seconds each."""
        self._since = step, time.perf_counter()
        self.due: float = step + steps_in(rest, pace)
        if isinstance(self.every, int):
            self.due = (step // self.every + 1) * self.every if self.every else math.inf

    def pace(self, step: int) -> float:
        """Return the seconds per step on this rank since the last snapshot."""
        before, then = self._since
        return (time.perf_counter() - then) / max(1, step - before)


# Of training time that snapshots in memory may cost. With what is not measured, such as caches that a copy empties, they take
# less than 1 % (bench/overhead.py).
MEMORY_SHARE = 0.0075
LAST = 3  # measurements whose median counts: one outlier, such as a garbage collection, does no harm
EARLY = 0.1  # of training time until there are so many: one outlier does not postpone the next snapshot for long


class MemoryRhythm(Rhythm):
    """The steps of snapshots in memory."""

    def __init__(self, every: int | str | None, step: int) -> None:
        super().__init__(every, step)
        self.exchanging = 0.0  # s that this rank's last exchange took, including its wait for others
        self.copying = 0.0  # s for which its last snapshot delayed training after that
        self._costs: deque[float] = deque(maxlen=LAST)  # s of training time that one cost
        self._paces: deque[float] = deque(maxlen=LAST)  # s of a step

    def go_on(self, step: int, cost: float, pace: float, kept: bool) -> None:
        """Choose the step of the next snapshot. `cost`: seconds that the last one took from training, 0 if that was not measured;
        `pace`: seconds per step; `kept`: whether each part of a snapshot has a node that can keep it. If not, no more are taken.

        All ranks pass the same values.
        """
        if cost:
            self._costs.append(cost)
        self._paces.append(pace)
        share = MEMORY_SHARE if len(self._costs) == LAST else EARLY
        self._choose(step, median_low(self._costs or [0.0]) / share, median(self._paces))
        if not kept:
            self.due = math.inf


DISK_SHARE = 0.01  # of the time that snapshots on the disk may hold up training
BUSY = 0.1  # of the time that the disk is written to
LEAST = 30.0  # seconds between two snapshots on the disk


class DiskRhythm(Rhythm):
    """The steps of snapshots on the disk of a user's own loop."""

    def begin(self, step: int) -> None:
        """Note that a snapshot is begun."""
        self._begun, self._pace = time.perf_counter(), self.pace(step)

    def costs(self, writing: float) -> torch.Tensor:
        """Return, to be exchanged, the seconds for which training was held up, of the last write, and of a step."""
        return torch.tensor([time.perf_counter() - self._begun, writing, self._pace], dtype=torch.float64)

    def go_on(self, step: int, costs: Sequence[torch.Tensor]) -> None:
        """Choose the next step from the `costs` of all ranks."""
        stall, writing, _ = torch.stack([*costs]).max(0).values.tolist()
        self._choose(step, max(LEAST, stall / DISK_SHARE, writing / BUSY), costs[0][2].item())


CHECK_SHARE = 0.005  # of training time that a check may take with --verify-every auto or --replay-every auto
JITTER = 1.4  # times one rank's cost: all wait for the slowest (two CPU ranks: 4.8 ms where 3.3 were timed)
UNTIMED, TIMED = 3, 8  # steps that are skipped, and then timed, before the first check


class CheckInterval:
    """The steps between checks."""

    def __init__(self, context: Context, every: int | str) -> None:
        """`every`: steps, 0 for none; `auto`: as often as is cheap."""
        self.every = every
        self._context, self._steps, self._since, self._pace = context, 0, 0.0, 0.0

    def is_next(self, step: int) -> bool:
        """Whether a check follows the step that begins."""
        if isinstance(self.every, int):
            return self.every > 0 and step % self.every == 0
        return self._steps + 1 == UNTIMED + TIMED

    def is_due(self, step: int) -> bool:
        """Call after each step, once: whether a check follows it."""
        due = self.is_next(step)
        if self.every == AUTO:
            if due and self._context.device.type == "cuda":
                torch.cuda.synchronize(self._context.device)
            now = time.monotonic()
            # If the training returns to a snapshot before the interval is chosen, its steps are timed again.
            self._steps = 0 if due else self._steps + 1
            self._since = now if self._steps == UNTIMED else self._since
            self._pace = (now - self._since) / TIMED
        return due

    def choose(self, cost: float) -> None:
        """Let rank 0 choose the interval for all with `auto`, after the first check, which took `cost` seconds."""
        if self.every == AUTO:
            chosen = steps_in(JITTER * cost / CHECK_SHARE, self._pace)
            self.every = int(self._context.share(torch.tensor([chosen])))
