"""What runs on this node: device, number of processes, backend, threads; and which process this is, where the launcher was
started once per process rather than once per node. Pure.
"""

from collections.abc import Mapping
from typing import NamedTuple

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.devices import Devices, Gpu
from slipway.launch.resolve.scheduler import Reading
from slipway.launch.resolve.schedulers import SCHEDULERS
from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.resolve.sources import Claim, Sources, parse_claim
from slipway.protocol.errors import UNHEALTHY, LaunchError


class Process(NamedTuple):
    """This process's place in the job: its rank of `world_size` processes, and of `local_world_size` on this node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    source: str

    @property
    def nodes(self) -> int:
        """How many nodes that makes, with as many processes on each as here."""
        return -(-self.world_size // self.local_world_size)


def find_process(sources: Sources, readings: tuple[Reading, ...]) -> Process | None:
    """Return this process's place where Slurm, mpirun or a user who set LOCAL_RANK started one launcher per process.

    None for one launcher per node, and where the command line names this node's rank. Raises LaunchError where the
    values do not fit together.
    """
    if all(sources.option(BY_NAME[name]) for name in ("RANK", "WORLD_SIZE")):
        return None
    for reading in readings:
        if reading.get("PROCESSES"):
            names = ("PROCESS_RANK", "PROCESSES", "LOCAL_RANK", "LOCAL_PROCESSES")
            return _read_process([reading.get(name) for name in names], reading.scheduler.name)
    if any(reading.get("PER_NODE") for reading in readings):
        return None
    local_rank = sources.variable("LOCAL_RANK")
    if local_rank is None or injected_by_hook(sources.environ, readings, "LOCAL_RANK"):
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return _read_process([sources.variable(name) for name in names], "LOCAL_RANK")


def _read_process(claims: list[Claim | None], source: str) -> Process:
    rank, world_size, local_rank, local_world_size = (
        int(claim.value) if claim and claim.value.isdecimal() else None for claim in claims
    )
    if (
        rank is None
        or world_size is None
        or local_rank is None
        or rank >= world_size
        or local_rank >= (local_world_size or world_size)
    ):
        said = ", ".join(f"{claim.source} = {claim.value}" for claim in claims if claim)
        raise LaunchError(
            f"This looks like one launcher per process ({said}), but rank, number of processes and local rank are not all "
            "there or do not fit together. Start one launcher per node (srun --ntasks-per-node=1, mpirun --map-by "
            "ppr:1:node) and unset LOCAL_RANK; Slipway then starts a process per GPU itself."
        )
    if local_world_size is None and rank != local_rank:
        raise LaunchError(
            f"Rank {rank} with local rank {local_rank} is one of several nodes, but the number of processes per node is not set. "
            "Set LOCAL_WORLD_SIZE, or start one launcher per node and unset LOCAL_RANK."
        )
    return Process(rank, world_size, local_rank, local_world_size or world_size, source)


def injected_by_hook(environ: Mapping[str, str], readings: tuple[Reading, ...], name: str) -> bool:
    """Whether a container hook wrote this variable, so that it does not describe nodes."""
    copied = (reading.scheduler.hook[name] for reading in readings if name in reading.scheduler.hook)
    return bool(environ.get(name)) and any(environ[name] == environ.get(source) for source in copied)


ON_CPU = "use NPROC_PER_NODE=cpu, or hide the GPUs with CUDA_VISIBLE_DEVICES=void and set NPROC_PER_NODE to a number"


def granted_gpus(environ: Mapping[str, str]) -> str:
    """Who granted GPUs of this node to the job, in words; empty where nobody did."""
    for scheduler in SCHEDULERS:
        given = environ.get(scheduler.gpus, "") if scheduler.gpus else ""
        if given.isdecimal() and int(given):
            return f"{scheduler.name} gave this job {given} of this node's GPUs ({scheduler.gpus})"
    return ""


def place_processes(
    asked: Claim, devices: Devices, sources: Sources, process: Process | None, runtime: str
) -> tuple[str, int]:
    """The device, `cuda` or `cpu`, and this node's processes. Raises LaunchError: 78 for what is impossible, 77 for sick GPUs."""
    wish = parse_claim(BY_NAME["NPROC_PER_NODE"], asked)
    gpus, cores = len(devices.gpus), max(1, int(devices.cpus))
    if wish == "cpu":
        return "cpu", process.local_world_size if process else cores
    granted = granted_gpus(sources.environ)
    if devices.problem:
        # Who grants GPUs sets CUDA_VISIBLE_DEVICES again for each task.
        on_cpu = "use NPROC_PER_NODE=cpu" if granted else ON_CPU
        raise LaunchError(
            f"This node's GPUs cannot be used: {devices.problem}. To train on its CPU {on_cpu}.", UNHEALTHY
        )
    if not gpus and not devices.hidden and granted:
        raise LaunchError(
            f"{granted}, but none is visible here ({devices.reason}). Look at nvidia-smi on this node, and in its container; to "
            "train on its CPU use NPROC_PER_NODE=cpu.",
            UNHEALTHY,
        )
    if wish == "gpu" and not gpus:
        raise LaunchError(
            f"{asked.about('NPROC_PER_NODE')}, but no GPU is visible here ({devices.reason}). To see them "
            f"{advise('gpus', runtime)}; to train on the CPU use NPROC_PER_NODE=auto."
        )
    if process:
        _refuse_other_count(asked, wish, process)
        return "cuda" if gpus else "cpu", process.local_world_size
    if not gpus:
        # Two show data parallelism on any machine; more would only share the same cores.
        return "cpu", wish if isinstance(wish, int) else min(2, cores)
    if isinstance(wish, int) and wish > gpus and not sources.parsed("SLIPWAY_OVERSUBSCRIBE"):
        raise LaunchError(
            f"{asked.about('NPROC_PER_NODE')}, but {gpus} GPU{'s are' if gpus > 1 else ' is'} visible. "
            f"Use {gpus} or auto; to share GPUs between processes, add --oversubscribe."
        )
    return "cuda", wish if isinstance(wish, int) else gpus


def _refuse_other_count(asked: Claim, wish: object, process: Process) -> None:
    """Raise LaunchError where a number was typed and a starter has started another one of these launchers on this node."""
    local = process.local_world_size
    if isinstance(wish, int) and asked.is_typed and wish not in (1, local):
        raise LaunchError(
            f"{asked.about('NPROC_PER_NODE')}, but by {process.source} this is one of {local} launchers on this node, and each "
            "runs one process. For a job of this launcher alone, as in a shell of `srun --pty`, add --standalone; for one job of "
            "all, start one launcher per node (srun --ntasks-per-node=1, mpirun --map-by ppr:1:node)."
        )


def place_gpus(gpus: tuple[Gpu, ...], processes: int) -> tuple[Gpu, ...]:
    """Return the GPU of each local rank, as train/worker/place.py counts them; more processes than GPUs take turns."""
    return tuple(gpus[local % len(gpus)] for local in range(processes)) if gpus else ()


def is_fair(gpus: tuple[Gpu, ...], processes: int, cpus: float) -> bool:
    """Whether each process, on the cores near its GPU, would have at least half of an equal share of the `cpus`.

    A job that was given cores of one socket and one core of the other would wait for the processes on that one.
    """
    bound = [gpu.cores for gpu in place_gpus(gpus, processes) if gpu.cores]
    return all(len(cores) // bound.count(cores) >= cpus / processes / 2 for cores in bound)


def share_gpus(gpus: tuple[Gpu, ...], processes: int, process: Process | None) -> bool:
    """Whether two processes of this node may be on one physical GPU, which NCCL refuses ("Duplicate GPU detected").

    MIG slices of a GPU are: NCCL (2.27 in torch 2.10) tells GPUs by their PCI address, which slices share.
    """
    if process and len(gpus) < processes:  # with a launcher for each process it may see its own alone
        return any(gpu.is_slice for gpu in gpus)
    return len({gpu.number for gpu in place_gpus(gpus, processes)}) < processes


def choose_backend(
    sources: Sources, device: str, processes: int, devices: Devices, process: Process | None, runtime: str
) -> str:
    """Return nccl, gloo or mpi. Raises LaunchError for nccl without GPUs."""
    setting = BY_NAME["SLIPWAY_BACKEND"]
    claim = sources.claim(setting.name)
    backend = str(parse_claim(setting, claim))
    if backend == "auto":
        return "nccl" if device == "cuda" and not share_gpus(devices.gpus, processes, process) else "gloo"
    if backend == "nccl" and device == "cpu":
        raise LaunchError(
            f"The nccl backend (from {claim.source}) needs GPUs, and training runs on the CPU here ({devices.reason}). "
            f"Use --backend gloo or auto; to see GPUs {advise('gpus', runtime)}."
        )
    return backend


def choose_threads(
    sources: Sources, readings: tuple[Reading, ...], devices: Devices, processes: int, process: Process | None
) -> int | None:
    """Return OMP_NUM_THREADS for each process; None where the user's own value is kept.

    A container hook's OMP_NUM_THREADS=1, which no user chose, is replaced.
    """
    own = sources.variable("OMP_NUM_THREADS")
    if own and not (own.value == "1" and injected_by_hook(sources.environ, readings, "WORLD_SIZE")):
        return None
    per_task = sources.variable(*(each.cores_per_task for each in SCHEDULERS if each.cores_per_task))
    if process and per_task and per_task.value.isdecimal():  # the cores that we see are this task's alone
        return max(1, min(int(per_task.value), int(devices.cpus)))
    bound = [gpu.cores for gpu in place_gpus(devices.gpus, processes) if gpu.cores]
    shares = [len(cores) // bound.count(cores) for cores in bound] if not process else []
    return max(1, min([int(devices.cpus // processes), *shares]))
