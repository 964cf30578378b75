"""Which device and which cores each process of a node has: the launcher decides, whoever starts the processes sees to it.

SLIPWAY_LOCAL_DEVICES   MIG-8a1f…,MIG-02bc…           CUDA_VISIBLE_DEVICES of local rank 0, 1, …; unset where all see the same
SLIPWAY_LOCAL_CORES     0-31,64-95:0-31,64-95:32-63   the cores of local rank 0, 1, …; nothing between two colons: any

torchrun starts all processes of a node with one environment. Its own --numa-binding loads CUDA in the agent, and needs numactl.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

LOCAL_DEVICES, LOCAL_CORES = "SLIPWAY_LOCAL_DEVICES", "SLIPWAY_LOCAL_CORES"


def own_device(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """The variable that shows a process its own device alone; nothing where it sees those of its node."""
    devices = environ.get(LOCAL_DEVICES)
    return {"CUDA_VISIBLE_DEVICES": devices.split(",")[local_rank]} if devices else {}


def own_cores(environ: Mapping[str, str], local_rank: int) -> set[int]:
    """The cores of a process; none where it may run on any."""
    cores = environ.get(LOCAL_CORES)
    return read_cores(cores.split(":")[local_rank]) if cores else set()


def move_to(cores: Iterable[int]) -> None:
    """This thread, and what it starts from here on, runs on those of these cores that are ours; where none is, on all of ours."""
    if usable := os.sched_getaffinity(0).intersection(cores):
        _set_affinity(usable)


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """The same for what is started meanwhile."""
    before = os.sched_getaffinity(0)
    move_to(cores)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != before:
            _set_affinity(before)


def _set_affinity(cores: set[int]) -> None:
    with suppress(OSError):  # a cgroup took them from us at this moment: the kernel keeps to what is left
        os.sched_setaffinity(0, cores)


def write_cores(cores: Iterable[int]) -> str:
    """Numbers as the kernel writes a list of CPUs (cpuset(7)): `0-3,8`."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][-1] == core - 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)


def read_cores(text: str) -> set[int]:
    """The numbers in such a list."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return {core for part in ends for core in range(part[0], part[-1] + 1)}
