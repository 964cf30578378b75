"""The clocks that a launcher reads. The simulation of its protocol (tests/sim) hands in others."""

import os
import time as system
from collections.abc import Callable
from dataclasses import dataclass

from slipway.process.tree import stat_fields

YOUNG = 60.0  # s that a launcher may take until it asks how old it is


def age() -> float:
    """For how many seconds this process has lived: what it imported took its part of a job's time, too."""
    ticks = int(stat_fields(os.getpid())[19])  # proc_pid_stat(5): starttime
    seconds = system.clock_gettime(system.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return seconds if 0 <= seconds <= YOUNG else 0.0


@dataclass(frozen=True)
class Clock:
    """`time` returns unix seconds, `monotonic` seconds that never go back, `age` for how many seconds this process has lived."""

    time: Callable[[], float] = system.time
    monotonic: Callable[[], float] = system.monotonic
    age: Callable[[], float] = age


CLOCK = Clock()  # this machine's
