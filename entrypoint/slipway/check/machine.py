"""What the machine, the container and the kernel allow this node: /dev/shm, memory, CPUs, open files and processes; whether the
host names it needs resolve, whether its port is free, and whether its cloud announces that it takes the machine back.
"""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path

from slipway.check.finding import misconfigured, ok, sick, warning, within
from slipway.launch.interruptions.metadata import Service, explain_failure
from slipway.launch.interruptions.watch import open_service
from slipway.launch.rendezvous.connection_errors import connection_failure, explain_connection
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.connectivity import is_loopback, listen, loopback_address
from slipway.launch.resolve.container_checks import SMALL_SHM
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.spot import OFF, TITLES, choose_watched
from slipway.launch.resolve.topology import Topology
from slipway.protocol.cgroups import Memory, cgroup_folders, read_memory, read_number
from slipway.protocol.errors import LaunchError

SHM = Path("/dev/shm")  # noqa: S108
FULL_SHM = 16 << 20  # bytes free; NCCL wants about 10 MB per peer
LITTLE_MEMORY = 1 << 30  # bytes left; a worker that has imported torch for CUDA holds as much
FEW_FILES = 4096  # a data-loader worker that shares tensors keeps several open for each batch
FEW_PROCESSES = 512  # torch starts dozens of threads in each worker, and they count
ROOT = Path("/")
NOTICES = "interruption notices"


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
        advice = f"remove leftover files there (ls -l /dev/shm), or {advise('shared memory', runtime)}"
        return sick(str(SHM), f"{found}: almost full", advice)
    if size < SMALL_SHM:
        found += ": too little for data-loader workers and for NCCL between the GPUs of a machine"
        return warning(str(SHM), found, advise("shared memory", runtime))
    return ok(str(SHM), found)


def look_at_memory(root: Path = ROOT) -> Iterator[Finding]:
    """The row about memory. `root`: of the file system; tests pass another one."""
    yield judge_memory(read_memory(root))


def judge_memory(memory: Memory) -> Finding:
    """Whether a job can start with what is left."""
    found = f"{gibibytes(memory.available)} of {gibibytes(memory.total)} available"
    if memory.limit is not None:
        found += f"; this container or job may use {gibibytes(memory.limit)} and uses {gibibytes(memory.used)}"
    if memory.left < LITTLE_MEMORY:
        return warning("memory", found, "give the container or job more memory, or end the processes that use it")
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
    found = f"{mebibytes(most)} at most: NCCL cannot use InfiniBand with it and uses TCP instead"
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


SECONDS = 10.0  # name servers are asked twice at most in that time (resolv.conf(5): 5 s each)
Resolve = Callable[[str], str]


def resolve(name: str) -> str:
    """The first address of a name. Raises socket.gaierror."""
    try:
        found = within(SECONDS, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, f"no name server answered within {SECONDS:.0f} s") from None
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "this cannot be a host name") from None
    return str(found[0][4][0])


def look_at_names(topology: Topology | None, ask: Resolve = resolve) -> Iterator[Finding]:
    """This host's name, and with several nodes MASTER_ADDR and the port on node 0. `ask` is for tests."""
    several = topology is not None and topology.nodes > 1
    yield judge_own_name(socket.gethostname(), several, ask)
    if topology is not None and several:
        yield judge_master(topology, ask)
        if topology.rank == 0:
            yield judge_port(topology.master_port, topology.master_addr)


def judge_own_name(name: str, several: bool, ask: Resolve) -> Finding:
    """Whether this host's own name resolves; gloo asks for it where no network interface is named."""
    try:
        return ok("host name", f"{name}, {ask(name)}")
    except OSError as error:
        found = f"{name} does not resolve ({error.strerror or error})"
    if not several:
        return ok("host name", f"{found}, which a single node does not need")
    return warning("host name", found, "add it to /etc/hosts or to DNS; other nodes and gloo ask for it")


def judge_master(topology: Topology, ask: Resolve) -> Finding:
    """Whether MASTER_ADDR leads somewhere, and not back to this machine alone."""
    name, what = topology.master_addr, "MASTER_ADDR"
    try:
        address = ask(name)
    except OSError as error:
        kind, words = connection_failure(error)
        told = explain_connection(kind, words, name, topology.master_port, topology.runtime)
        found, _, cause = told.partition("; usually: ")
        return misconfigured(what, found, f"usually: {cause}" if cause else "")
    known = name if name == address else f"{name}, {address}"
    if is_loopback(address):
        found = f"{known}: this machine alone, but the job has {topology.nodes} nodes"
        return warning(what, found, "unless all of them run on this machine, give the name or address of node 0")
    return ok(what, known)


def judge_port(port: int, address: str) -> Finding:
    """Whether node 0 can listen on MASTER_PORT."""
    try:
        listen(port, loopback=loopback_address(address)).close()
    except LaunchError as error:
        return misconfigured("MASTER_PORT", str(error))
    return ok("MASTER_PORT", f"{port} is free")


def look_at_notices(
    sources: Sources, host: Host, environ: Mapping[str, str], ask: Callable[..., Service] = open_service
) -> Iterator[Finding]:
    """The row about interruption notices: whether a cloud is asked for them, and what it answers. `ask` is for tests."""
    watched = choose_watched(sources, host.dmi)
    if watched.cloud == OFF:
        yield ok(NOTICES, f"not watched ({watched.why})")
        return
    try:
        found = ask(watched.cloud, environ).poll(time.time(), wait=False)
    except (OSError, HTTPException, ValueError) as error:
        trouble, remedy = explain_failure(watched.cloud, error)
        yield warning(NOTICES, f"not seen: {trouble} ({watched.why})", remedy)
        return
    for notice in found.notices:
        yield warning(NOTICES, notice.text, "this machine may be taken back soon: start on another one")
    if not found.notices:
        yield ok(NOTICES, f"none now; {TITLES[watched.cloud]} is watched ({watched.why})")
