"""What the machine, the container and the kernel allow this node: /dev/shm, memory, CPUs, open files, processes."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from slipway.launch.health.finding import ok, sick, warning
from slipway.launch.muster.card import Finding
from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.container_checks import SMALL_SHM
from slipway.launch.resolve.devices import Devices
from slipway.protocol.cgroups import Memory, cgroup_folders, read_memory, read_number

SHM = Path("/dev/shm")  # noqa: S108
FULL_SHM = 16 << 20  # bytes free; NCCL wants about 10 MB per peer
LITTLE_MEMORY = 1 << 30  # bytes left; a worker that has imported torch for CUDA holds as much
FEW_FILES = 4096  # a data-loader worker that shares tensors keeps several open for each batch
FEW_PROCESSES = 512  # torch starts dozens of threads in each worker, and they count
ROOT = Path("/")


def look_at_shm(runtime: str, folder: Path = SHM) -> Iterator[Finding]:
    """The row about shared memory; `runtime` as in Host, for the advice."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        yield sick(str(SHM), f"is not there: {error.strerror}", advise("shared memory", runtime))
        return
    yield judge_shm(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, runtime)


def judge_shm(size: int, free: int, runtime: str) -> Finding:
    """Whether shared memory of `size` bytes with `free` ones will do."""
    found = f"{mebibytes(size)}, {mebibytes(free)} free"
    if free < FULL_SHM:
        advice = f"remove what is left over there (ls -l /dev/shm), or {advise('shared memory', runtime)}"
        return sick(str(SHM), f"{found}: as good as full", advice)
    if size < SMALL_SHM:
        found += ": too little for data-loader workers and for NCCL between the GPUs of a machine"
        return warning(str(SHM), found, advise("shared memory", runtime))
    return ok(str(SHM), found)


def look_at_memory(root: Path = ROOT) -> Iterator[Finding]:
    """The row about memory. `root` of the file system is for tests."""
    yield judge_memory(read_memory(root))


def judge_memory(memory: Memory) -> Finding:
    """Whether a job can start with what is left."""
    found = f"{gibibytes(memory.available)} of {gibibytes(memory.total)} available"
    if memory.limit is not None:
        found += f"; this container or job may use {gibibytes(memory.limit)} and uses {gibibytes(memory.used)}"
    if memory.left < LITTLE_MEMORY:
        return warning("memory", found, "give the container or job more memory, or end what holds it")
    return ok("memory", found)


def look_at_cpus(devices: Devices, runtime: str) -> Iterator[Finding]:
    """The row about CPUs: how many there are, and how many this process may use."""
    yield judge_cpus(devices, len(os.sched_getaffinity(0)), os.cpu_count() or 1, runtime)


def judge_cpus(devices: Devices, affinity: int, machine: int, runtime: str = "host") -> Finding:
    """Whether each GPU has a CPU of its own at least."""
    found = f"{devices.cpus:g} of {machine} may be used"
    if affinity < machine:
        found += f" (affinity: {affinity})"
    if devices.cpus < len(devices.gpus):
        advice = f"give the job as many CPUs as GPUs at least ({advise('cores', runtime)})"
        return warning("CPUs", f"{found}, fewer than the {len(devices.gpus)} GPUs", advice)
    return ok("CPUs", found)


def look_at_limits(runtime: str = "host", root: Path = ROOT) -> Iterator[Finding]:
    """The rows about open files, locked memory and, where there are few, processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{amount(soft)} ({amount(hard)} at most)"
    more = f"raise it: {advise('open files', runtime)}"
    low = 0 <= hard < FEW_FILES
    yield (
        warning("open files", f"{found}: few for data loaders and for a job of many nodes", more)
        if low
        else ok("open files", found)
    )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield judge_locked(locked, any((root / "sys/class/infiniband").glob("*")), runtime)
    folders = cgroup_folders(root, "pids")
    left = [
        most - (read_number(folder / "pids.current") or 0)
        for folder in folders
        if (most := read_number(folder / "pids.max"))
    ]
    if left and min(left) < FEW_PROCESSES:
        found = f"{min(left)} more are allowed here, threads counted"
        yield warning("processes", found, f"raise it: {advise('processes', runtime)}")


def judge_locked(most: int, infiniband: bool, runtime: str = "host") -> Finding:
    """Whether memory may be locked, which only InfiniBand needs."""
    if most == resource.RLIM_INFINITY or not infiniband:
        return ok("locked memory", "unlimited" if most == resource.RLIM_INFINITY else f"{mebibytes(most)} at most")
    found = f"{mebibytes(most)} at most: NCCL cannot use InfiniBand with it and takes TCP instead"
    return warning("locked memory", found, advise("locked memory", runtime))


def amount(limit: int) -> str:
    """A limit of the kernel's as people read it."""
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def mebibytes(size: float) -> str:
    """Bytes in units of 2**20, as docker's --shm-size has them."""
    return f"{size / (1 << 20):,.0f} MB"


def gibibytes(size: float) -> str:
    """Bytes in units of 2**30."""
    return f"{size / (1 << 30):,.1f} GB"
