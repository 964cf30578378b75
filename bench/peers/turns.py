"""What a side of `bench/gpt.py` does besides training: it waits for its turn, and says what its steps took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from peers.plan import PIPE, Plan


class Turns:
    """Steps are taken while it is this side's turn. All ranks come here after each; rank 0 speaks with the bench."""

    def __init__(self, block: int) -> None:
        """Needs a process group. A turn is `block` steps long."""
        self._block, self._taken = block, 0
        self._pipe = Connection(int(os.environ[PIPE])) if dist.get_rank() == 0 else None

    def begin(self) -> None:
        """Return when it is this side's turn, on all ranks at once."""
        if self._pipe:
            self._pipe.recv()
        dist.barrier()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def step_ended(self) -> bool:
        """Count a step; after the last of a turn tell what they took. Whether the turn ended."""
        self._taken += 1
        if self._taken % self._block:
            return False
        dist.barrier()
        wall, cpu = time.perf_counter() - self._wall, torch.tensor([time.process_time() - self._cpu])
        dist.all_reduce(cpu)
        self.tell([(wall / self._block, float(cpu) / self._block)])
        return True

    def tell(self, what: object) -> None:
        """Send it to the bench, from rank 0."""
        if self._pipe:
            self._pipe.send(what)


def take_turns(plan: Plan, turns: Turns) -> Iterator[int]:
    """The steps of a plan, from 0, each when it is its turn. For plain loops, which do one after the other."""
    turns.begin()
    for step in range(plan.steps):
        yield step
        if turns.step_ended() and step + 1 < plan.steps:
            turns.begin()
