"""A worker's place in its job, from the environment that torchrun and the launcher set, and its device and process group."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from slipway.process.folder_lock import FolderLock
from slipway.protocol.files import newest_attempt
from slipway.protocol.memory import BUFFERS, VARIABLE


@dataclass(frozen=True)
class Place:
    """What the environment says: numbers from torchrun, folders from the launcher."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    run_dir: Path
    node_dir: Path
    backend: str
    device: str
    resume: str
    bar: bool
    shared: bool  # whether all nodes share the run directory
    attempt: int = 0  # number of the attempt on the run; 0: unknown
    memory: tuple[
        str, ...
    ] = ()  # paths of two buffers for snapshots in memory, of which each process of a node has its own

    lock: FolderLock | None = None  # of a script that no launcher started

    @property
    def is_writer(self) -> bool:
        """Whether this worker reads and writes snapshots: the first of the job, or of each node if the disk is not shared."""
        return self.rank == 0 if self.shared else self.local_rank == 0

    @property
    def superseded(self) -> bool:
        """Whether somebody else took over the run because our launcher, or this script, seemed dead: it was frozen or cut off."""
        return bool(self.lock and self.lock.lost) or 0 < self.attempt < newest_attempt(self.run_dir)


def read_place(environ: Mapping[str, str]) -> Place:
    """Return the worker's place. Raises SystemExit with what to type if the launcher did not start this process."""
    missing = [name for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_NODE_DIR") if not environ.get(name)]
    if missing:
        raise SystemExit(f"{missing[0]} is not set; workloads are started by the launcher: slipway run WORKLOAD")
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    return Place(
        rank=int(environ.get("RANK", "0")),
        local_rank=local_rank,
        world_size=int(environ.get("WORLD_SIZE", "1")),
        node_rank=int(environ.get("GROUP_RANK", "0")),
        run_dir=Path(environ["SLIPWAY_RUN_DIR"]),
        node_dir=Path(environ["SLIPWAY_NODE_DIR"]),
        backend=environ.get("SLIPWAY_BACKEND", "gloo"),
        device=environ.get("SLIPWAY_DEVICE", "cpu"),
        resume=environ.get("SLIPWAY_RESUME", "none"),
        bar=environ.get("SLIPWAY_PROGRESS") == "bar",
        shared=environ.get("SLIPWAY_SHARED_RUN_DIR", "1") != "0",
        attempt=int(environ.get("SLIPWAY_ATTEMPT", "0")),
        memory=tuple(environ.get(VARIABLE, "").split()[BUFFERS * local_rank : BUFFERS * (local_rank + 1)]),
    )


def open_device(place: Place) -> torch.device:
    """Return this worker's device; several workers share a GPU only if the user asked for more workers than GPUs."""
    if place.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


# Workers start within seconds of each other; the slowest ones import torch from cold shared storage.
CONNECT_TIMEOUT = timedelta(minutes=5)
# Longer than the launcher's limit for a rank without progress (protocol/phases.py: half an hour for a first step that
# compiles), so that the launcher names the slow rank first; this is the limit if the launcher's is turned off.
COLLECTIVE_TIMEOUT = timedelta(hours=1)


def open_group(place: Place, device: torch.device) -> dist.ProcessGroup | None:
    """Join the other workers, within CONNECT_TIMEOUT. Returns the side group; None with a single process."""
    if place.world_size == 1:
        return None
    if place.backend == "mpi":  # has its own start and ranks, and carries CPU tensors itself
        dist.init_process_group("mpi")
        return dist.group.WORLD
    store, rank, world_size = next(rendezvous("env://", timeout=CONNECT_TIMEOUT))
    with silent_stdout():
        dist.init_process_group(
            place.backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=device if place.backend == "nccl" else None,
        )
        side: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    return side


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Drop what C++ code writes to stdout: gloo announces every connection there, and it cannot be turned off."""
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def leave_group() -> None:
    """Close the process group. No model may exist any more.

    If a DistributedDataParallel object exists when the interpreter ends, one process in five aborts (`terminate called
    without an active exception`).
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
