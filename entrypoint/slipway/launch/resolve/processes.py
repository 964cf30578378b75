"""Where the launcher was started once per process rather than once per node: recognised, and understood. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from slipway.launch.resolve.scheduler import Reading
from slipway.launch.resolve.schedulers import SLURM
from slipway.launch.resolve.settings import BY_NAME, Claim, Sources
from slipway.protocol.errors import LaunchError

# What enroot's PyTorch hook and pyxis put into the variables of every task, whatever the job meant.
HOOK_FORMULAS = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


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
    """Return this process's place where Slurm, mpirun or somebody who set LOCAL_RANK started one launcher per process.

    None for one launcher per node, and where the command line says which node this is. Raises LaunchError where the
    values do not fit together.
    """
    if all(sources.option(BY_NAME[name]) for name in ("RANK", "WORLD_SIZE")):
        return None
    for reading in readings:
        if reading.get("PROCESSES"):
            names = ("PROCESS_RANK", "PROCESSES", "LOCAL_RANK", "LOCAL_PROCESSES")
            return _read_process([reading.get(name) for name in names], reading.scheduler)
    if any(reading.get("PER_NODE") for reading in readings):
        return None
    local_rank = sources.variable("LOCAL_RANK")
    if local_rank is None or injected_by_hook(sources.environ, readings, "LOCAL_RANK"):
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return _read_process([sources.variable(name) for name in names], "LOCAL_RANK")


def injected_by_hook(environ: Mapping[str, str], readings: tuple[Reading, ...], name: str) -> bool:
    """Whether a container hook wrote this variable, so that it says nothing about nodes."""
    slurm = any(reading.scheduler == SLURM.name for reading in readings)
    return slurm and bool(environ.get(name)) and environ[name] == environ.get(HOOK_FORMULAS[name])


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
            f"Rank {rank} with local rank {local_rank} is one of several nodes, but nobody says how many processes each has. "
            "Set LOCAL_WORLD_SIZE, or start one launcher per node and unset LOCAL_RANK."
        )
    return Process(rank, world_size, local_rank, local_world_size or world_size, source)
