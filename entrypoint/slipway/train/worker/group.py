"""The device and the process group of a worker: how it joins the others, and how it leaves them cleanly."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from slipway.train.worker.place import Place

# Other workers start within seconds of each other; the slowest import torch from cold shared storage.
CONNECT_TIMEOUT = timedelta(minutes=5)
# Longer than what the launcher lets a rank stand still (protocol/phases.py: half an hour for a first step
# that compiles), so that its verdict names the rank that lags behind; the limit where that is turned off.
COLLECTIVE_TIMEOUT = timedelta(hours=1)


def open_device(place: Place) -> torch.device:
    """The device of this worker; several workers share a GPU only where the user asked for more of them."""
    if place.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def open_group(place: Place, device: torch.device) -> dist.ProcessGroup | None:
    """Join the other workers, at most CONNECT_TIMEOUT long. Returns the side group; None with a single process."""
    if place.world_size == 1:
        return None
    if place.backend == "mpi":  # brings its own start and its own ranks, and carries CPU tensors itself
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
    """Drop what C++ code writes to stdout: gloo announces every connection there and cannot be told not to."""
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
    """Close the process group. No model may be alive any more.

    A DistributedDataParallel object that is alive when the interpreter ends aborts one process in five
    (`terminate called without an active exception`).
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
