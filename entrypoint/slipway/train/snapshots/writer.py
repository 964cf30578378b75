"""Snapshots are written in the background: training stands still for a copy in memory, not for the disk.

Measured on two cores with 0.74 GB of state: torch.save and fsync take 0.9 s or more, a copy into memory that is there
already 0.09 s (0.3 s the first time). A forked child that writes from copy-on-write pages costs 0.03 s, but a fork
beside OpenMP, gloo and CUDA is a hazard, and the child outlives a killed worker. So there is one way for CPU and GPU.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread, get_native_id

import torch

from slipway.train.snapshots.snapshot import Snapshot, save_snapshot

NICE = 10
ALIGNED = 64  # bytes, a multiple of every type's size: where a tensor begins in the memory for copies
Names = tuple[str, str]  # of a tensor: its file and its own


class Writer:
    """Writes one snapshot at a time into `folder`, of which the newest `keep` stay there."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        superseded: Callable[[], bool] = lambda: False,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Nothing is allocated before the first copy; `superseded` and `warn`, which is called once, as for `save_snapshot`."""
        self.folder, self._superseded, self._warn = folder, superseded, warn
        self._warned = False
        self.written = 0  # bytes so far, for whoever waits
        self.seconds = 0.0  # that the last snapshot took to be written
        self._keep = keep
        self._aside: dict[Names, torch.Tensor] = {}
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, snapshot: Snapshot, copy: bool) -> None:
        """Begin to write. Without `copy` the tensors must not change before `wait` is False; it needs no more memory."""
        ready: Callable[[], float] = lambda: 0.0  # noqa: E731
        if copy:
            snapshot, ready = self._copy(snapshot)
        self._thread = Thread(target=self._write, args=(snapshot, ready, copy), daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the snapshot under way, at most `seconds`. Returns whether it still is under way."""
        if self._thread is not None:
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self._thread = None
        return self._thread is not None

    def check(self) -> None:
        """Raise what went wrong while writing: OSError."""
        if self._error is not None:
            raise self._error

    @property
    def failed(self) -> bool:
        """Whether the last snapshot could not be written."""
        return self._error is not None

    def _write(self, snapshot: Snapshot, ready: Callable[[], float], humble: bool) -> None:
        try:
            if humble:
                be_humble()
            ready()
            begun = time.monotonic()
            save_snapshot(self.folder, snapshot, self._keep, self._note, self._superseded, self._warn_once)
            self.seconds = time.monotonic() - begun
        except BaseException as error:
            self._error = error

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warn(text)
        self._warned = True

    def _note(self, size: int) -> None:
        self.written += size

    def _copy(self, snapshot: Snapshot) -> tuple[Snapshot, Callable[[], float]]:
        """The snapshot with its tensors copied into memory of our own, and what returns once they are there.

        From a GPU they go into pinned memory on a stream of their own. The host does not wait; what is queued after
        this on the training's stream starts when the copies are made, at the speed of PCIe.
        """
        places = {
            (stem, name): tensor for stem, tensors in snapshot.tensors.items() for name, tensor in tensors.items()
        }
        new = {names: tensor for names, tensor in places.items() if form(tensor) != form(self._aside.get(names))}
        if new:
            memory = torch.empty(size_aside(new), dtype=torch.uint8)
            copies = set_aside(new, memory)
            self._aside |= copies
            if any(tensor.is_cuda for tensor in new.values()):
                pin(memory)
                # Before it is freed: whatever gets its address next could not be pinned.
                weakref.finalize(self, unpin, memory).atexit = False
        ready = copy_all(places, self._aside)
        tensors = {stem: {name: self._aside[stem, name] for name in named} for stem, named in snapshot.tensors.items()}
        return replace(snapshot, tensors=tensors), ready


def form(tensor: torch.Tensor | None) -> tuple[torch.Size, torch.dtype] | None:
    """Shape and type."""
    return None if tensor is None else (tensor.shape, tensor.dtype)


def be_humble() -> None:
    """Where training wants every core, leave a tenth of one to the thread that calls this; Linux has that per thread."""
    with suppress(OSError):  # a sandbox may forbid it, and that is no reason to lose a snapshot
        os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICE)


def size_aside(tensors: Mapping[Names, torch.Tensor]) -> int:
    """Bytes that copies of these tensors take in one piece."""
    return sum(aligned(tensor.nbytes) for tensor in tensors.values())


def set_aside(tensors: Mapping[Names, torch.Tensor], memory: torch.Tensor) -> dict[Names, torch.Tensor]:
    """Room for a copy of each tensor in CPU memory of that size."""
    room, begin = {}, 0
    for names, tensor in tensors.items():
        room[names] = memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        begin += aligned(tensor.nbytes)
    return room


def aligned(size: int) -> int:
    """The next multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED


def pin(memory: torch.Tensor) -> None:
    """Let a GPU write into CPU memory by itself: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html.

    torch's allocator of pinned memory rounds each tensor up to a power of two, which for GPT-2 makes 2.31 GiB of 1.39.
    """
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))


def unpin(memory: torch.Tensor) -> None:
    """Undo `pin`."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostUnregister(memory.data_ptr()))


def copy_all(sources: Mapping[Names, torch.Tensor], targets: Mapping[Names, torch.Tensor]) -> Callable[[], float]:
    """Copy sources into targets by name; what is returned waits, and tells for how many seconds a GPU's training stood still."""
    on_gpu = [key for key, source in sources.items() if source.is_cuda]
    for key in sources.keys() - set(on_gpu):
        targets[key].copy_(sources[key])
    if not on_gpu:
        return lambda: 0.0
    training, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    side.wait_stream(training)
    begun.record(side)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for key in on_gpu:
            targets[key].copy_(sources[key], non_blocking=True)
    training.wait_stream(side)
    done.record(side)  # type: ignore[no-untyped-call]

    def ready() -> float:
        done.synchronize()
        return float(begun.elapsed_time(done)) / 1000  # type: ignore[no-untyped-call]

    return ready
