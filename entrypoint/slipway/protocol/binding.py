"""Which device, cores and memory each process of a node has: the launcher decides, whoever starts the processes sees to it.

SLIPWAY_LOCAL_DEVICES   MIG-8a1f…,MIG-02bc…           CUDA_VISIBLE_DEVICES of local rank 0, 1, …; unset where all see the same
SLIPWAY_LOCAL_CORES     0-31,64-95:0-31,64-95:32-63   the cores of local rank 0, 1, …; nothing between two colons: any

torchrun starts all processes of a node with one environment. Its own --numa-binding loads CUDA in the agent, and needs numactl.
"""

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from slipway.protocol.cgroups import read_kernel_file

LOCAL_DEVICES, LOCAL_CORES = "SLIPWAY_LOCAL_DEVICES", "SLIPWAY_LOCAL_CORES"
# The numbers of get_mempolicy(2) and set_mempolicy(2), and their modes (linux/mempolicy.h).
POLICY_CALLS = MappingProxyType({"x86_64": (239, 238), "aarch64": (236, 237)})
DEFAULT, PREFERRED = 0, 1
MOST_NODES = 1024  # of NUMA, in a Linux kernel


def own_device(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """The variable that shows a process its own device alone; nothing where it sees those of its node."""
    devices = environ.get(LOCAL_DEVICES)
    return {"CUDA_VISIBLE_DEVICES": devices.split(",")[local_rank]} if devices else {}


def own_cores(environ: Mapping[str, str], local_rank: int) -> set[int]:
    """The cores of a process; none where it may run on any."""
    cores = environ.get(LOCAL_CORES)
    return read_cores(cores.split(":")[local_rank]) if cores else set()


def move_to(cores: Iterable[int]) -> bool:
    """This thread, and what it starts from here on, runs on those of these cores that are ours; where none is, on all of ours.

    Its memory comes from their NUMA node as long as there is some, and automatic NUMA balancing leaves it there. Returns whether
    that could be said to the kernel: Docker's seccomp profile forbids it, and then the kernel's own rule is much the same.
    """
    usable = os.sched_getaffinity(0).intersection(cores)
    if usable:
        _set_affinity(usable)
    return (node := near_memory(usable)) is not None and _set_policy(DEFAULT, PREFERRED, 1 << node)


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """The same for what is started meanwhile."""
    before = os.sched_getaffinity(0)
    preferred = move_to(cores)
    try:
        yield
    finally:
        if preferred:
            _set_policy(PREFERRED, DEFAULT)
        if os.sched_getaffinity(0) != before:
            _set_affinity(before)


def _set_affinity(cores: set[int]) -> None:
    with suppress(OSError):  # a cgroup took them from us at this moment: the kernel keeps to what is left
        os.sched_setaffinity(0, cores)


def near_memory(cores: Iterable[int], nodes: Path = Path("/sys/devices/system/node")) -> int | None:
    """The NUMA node with these cores; None where they are of several, or there is but one. Nodes that have memory alone, as those
    for the memory of Grace's GPUs, are none.
    """
    lists = {int(node.name[4:]): read_kernel_file(node / "cpulist").strip() for node in nodes.glob("node[0-9]*")}
    near = {number: bool(read_cores(text) & {*cores}) for number, text in lists.items() if text}
    return max(near, key=near.__getitem__) if sum(near.values()) == 1 < len(near) else None


def _set_policy(before: int, mode: int, nodes: int = 0) -> bool:
    """Change this thread's memory policy where it is as expected, and not one that a user chose; whether that was done."""
    syscall = ctypes.CDLL(None).syscall
    get, change = POLICY_CALLS.get(os.uname().machine, (0, 0))
    found, mask = ctypes.c_int(-1), nodes.to_bytes(MOST_NODES // 8, "little")
    if not get or syscall(get, ctypes.byref(found), None, 0, None, 0) or found.value != before:
        return False
    return not syscall(change, mode, mask if nodes else None, (MOST_NODES + 1) if nodes else 0)


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
