"""Slipway's own loop as one of several that take turns in one process: each in blocks of steps, with a clock of its own."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from sides import Cost

from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import read_place

REST = 0.1  # seconds after a turn, in which the workers of a DataLoader fill what they prefetch; then they stand still

Take = Callable[[int], None]  # so many steps


def cpu_seconds() -> float:
    """Of this process, with its children: those of a DataLoader live on, so that nobody has waited for them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime of proc(5)
    return time.process_time() + ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


class Clock:
    """What passes on the wall and on the CPUs."""

    def __init__(self) -> None:
        """Start."""
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()

    def read(self, units: int) -> Cost:
        """What each of so many units took."""
        wall = time.perf_counter() - self._wall
        return Cost(wall / units, (cpu_seconds() - self._cpu) / units)


class Host(Context):
    """A training's place in its job, on the CPU. At the end of each block of its steps the others take their turns."""

    def __init__(self, name: str, folder: Path, block: int, rounds: int) -> None:
        """`name` is what its own costs are called. One block warms up; then come the `rounds`."""
        place = read_place({"SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder)})
        super().__init__(place, torch.device("cpu"), None, Heartbeat(folder / "heartbeat.json"))
        self.costs: dict[str, list[Cost]] = defaultdict(list)  # of a step, in each round
        self._name, self._block, self._rounds = name, block, rounds
        self._others: dict[str, tuple[Take, int]] = {}
        self._clock = Clock()

    def add(self, name: str, take: Take, share: float = 1.0) -> None:
        """Give another its turn in each round: this share of the block's steps."""
        self._others[name] = take, max(1, round(share * self._block))

    def progress(self, step: int, snapshot: str | None = None) -> None:
        """What each step ends with; snapshots call it, too."""
        super().progress(step, snapshot)
        if snapshot is not None or step % self._block:
            return
        ended = step // self._block - 1
        if ended:
            self.costs[self._name].append(self._clock.read(self._block))
        if ended == 0 or ended % 2:
            self._let_others(ended)
        if ended % 2 and ended < self._rounds:  # every other round in the opposite order
            self._let_others(ended + 1)
        self._clock = Clock()

    def _let_others(self, number: int) -> None:
        for name in self._others if number % 2 else reversed(self._others):
            take, steps = self._others[name]
            clock = Clock()
            take(steps)
            if number:
                self.costs[name].append(clock.read(steps))
            time.sleep(REST)
