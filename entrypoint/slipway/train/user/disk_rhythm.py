"""When a user's own loop takes snapshots on the disk."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from slipway.train.snapshots.memory_buffers import next_multiple

SHARE = 0.01  # of the time that snapshots on the disk may hold up training, as those in memory
BUSY = 0.1  # of the time that the disk is written to
LEAST = 30.0  # seconds between two snapshots on the disk


class DiskRhythm:
    """The steps of snapshots on the disk, the same on all ranks: every so many steps, or as often as costs next to nothing."""

    def __init__(self, every: int | None, step: int) -> None:
        """Start at `step`. `every`: steps, 0 for none, None for as often as LEAST, SHARE and BUSY allow."""
        self.every = every
        self.due: float = step + 1 if every is None else next_multiple(every, step) if every else math.inf
        self._since = step, time.perf_counter()
        self._begun = 0.0
        self._pace = 0.0

    def begin(self, step: int) -> None:
        """Note that a snapshot is begun."""
        self._begun = time.perf_counter()
        before, then = self._since
        self._pace = (self._begun - then) / max(1, step - before)

    def costs(self, writing: float) -> torch.Tensor:
        """Return, to be exchanged, the seconds for which training was held up, of the last write, and of a step."""
        return torch.tensor([time.perf_counter() - self._begun, writing, self._pace], dtype=torch.float64)

    def go_on(self, step: int, costs: Sequence[torch.Tensor]) -> None:
        """Choose the next step from the `costs` of all ranks."""
        self._since = step, time.perf_counter()
        if self.every is not None:
            self.due = next_multiple(self.every, step)
            return
        stall, writing, _ = torch.stack([*costs]).max(0).values.tolist()
        pace = max(costs[0][2].item(), 1e-6)
        self.due = step + max(1, math.ceil(max(LEAST, stall / SHARE, writing / BUSY) / pace))
