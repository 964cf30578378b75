"""The clocks and the processes of this machine, as a launcher uses them. Simulations of its protocol and of an attempt hand in
others.
"""

import os
import selectors
import time as system
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipway.process import tree

YOUNG = 60.0  # s that a launcher may take until it asks how old it is


def age() -> float:
    """For how many seconds this process has lived: what it imported took its part of a job's time, too."""
    ticks = int(tree.stat_fields(os.getpid())[19])  # proc_pid_stat(5): starttime
    seconds = system.clock_gettime(system.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return seconds if 0 <= seconds <= YOUNG else 0.0


@dataclass(frozen=True)
class Clock:
    """`time` returns unix seconds, `monotonic` seconds that never go back, `age` for how many seconds this process has lived."""

    time: Callable[[], float] = system.time
    monotonic: Callable[[], float] = system.monotonic
    age: Callable[[], float] = age


def wait(selector: selectors.BaseSelector, seconds: float) -> None:
    """Call back what has something to read, within so many seconds."""
    for key, _ in selector.select(seconds):
        if key.data:
            key.data()


@dataclass(frozen=True)
class Machine:
    """The clock, and functions of this module and of tree.py; the latter take process ids and signals."""

    clock: Clock = Clock()  # frozen
    wait: Callable[[selectors.BaseSelector, float], None] = wait
    adopt_orphans: Callable[[], None] = tree.adopt_orphans
    lives: Callable[[int], bool] = tree.lives
    state_of: Callable[[int], str] = tree.state_of
    ignores: Callable[[int, int], bool] = tree.ignores
    catches: Callable[[int, int], bool] = tree.catches
    has_open: Callable[[int, Path], bool] = tree.has_open
    send_signal: Callable[[list[int], int], None] = tree.send_signal


CLOCK, MACHINE = Clock(), Machine()
