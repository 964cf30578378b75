"""Snapshots in memory that outlives this process: two buffers, used in turn, that the launcher of the node holds.

What is in them is what a snapshot on the disk has. The tensors are copied as the writer copies them (writer.py); a thread
then sees to it that all numbers are finite, sums them up and writes the header (protocol/memory.py).
"""

from __future__ import annotations

import json
import mmap
import os
import time
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch

from slipway.protocol.cgroups import read_memory
from slipway.protocol.memory import PAGE, Header, read_header, write_header
from slipway.train.snapshots.snapshot import Snapshot, SnapshotError
from slipway.train.snapshots.tensor_files import DTYPES
from slipway.train.snapshots.writer import Names, be_humble, copy_all, form, pin, set_aside, size_aside, unpin

LOADS = 2  # attempts that may go on from one snapshot in memory; if both fail, it may be what they fail of
PIECE = 2**28  # bytes that are read at once


@dataclass
class Buffer:
    """An open file, its memory as bytes once this process wrote into it, and the room in it for each tensor."""

    file: int
    memory: torch.Tensor | None = None
    copies: dict[Names, torch.Tensor] = field(default_factory=dict)


class MemoryBuffers:
    """Both; of several nodes each has its own. Without paths nothing is kept."""

    def __init__(self, paths: Sequence[str], warn: Callable[[str], None]) -> None:
        """Open the buffers. `warn` is told why nothing is kept, once, and of each snapshot that is passed over."""
        self._buffers: list[Buffer] = []
        self._warn = warn
        self._thread: Thread | None = None
        self._next = 0  # the buffer that is written to next, never the one with the newest snapshot
        self.seconds = 0.0  # that the last snapshot took of what training could have used
        try:
            for path in paths:
                self._buffers.append(Buffer(os.open(path, os.O_RDWR | os.O_CLOEXEC)))
        except OSError as error:
            self._give_up(f"they cannot be opened ({error.strerror})")
        newest = max(self._headers(), key=lambda pair: pair[1][:2][::-1], default=None)
        if newest:
            self._next = (self._buffers.index(newest[0]) + 1) % 2

    @property
    def usable(self) -> bool:
        """Whether snapshots are kept here."""
        return bool(self._buffers)

    def start(self, snapshot: Snapshot, sound: Callable[[list[torch.Tensor]], bool], spent: float = 0.0) -> None:
        """Begin to keep a snapshot: its tensors may change afterwards. It counts where those with fractions are `sound`.

        `spent`: seconds that it took of training before.
        """
        self.wait()
        tensors = {(stem, name): part for stem, parts in snapshot.tensors.items() for name, part in parts.items()}
        buffer = self._buffers[self._next]
        try:
            self._make_room(buffer, tensors)
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        begun = time.perf_counter()
        write_header(buffer.file, None)
        ready = copy_all(tensors, buffer.copies)
        self.seconds = spent + time.perf_counter() - begun
        self._thread = Thread(target=self._finish, args=(buffer, snapshot, ready, sound), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return once the snapshot under way is there."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def forget(self) -> None:
        """Training went back to before what is kept."""
        self.wait()
        for buffer in self._buffers:
            write_header(buffer.file, None)

    def load(self, newer_than: tuple[int, int]) -> Snapshot | None:
        """The newest snapshot that is whole, None where its attempt and step are none after `newer_than`.

        Each one that is passed over is named.
        """
        for buffer, header in sorted(self._headers(warn=True), key=lambda pair: pair[1][:2][::-1], reverse=True):
            if (header.attempt, header.step) <= newer_than:
                break
            if header.loads >= LOADS:
                self._warn(
                    f"passing over the snapshot in memory of step {header.step}: {LOADS} attempts from it failed"
                )
                continue
            try:
                return load_buffer(buffer.file, header)
            except (SnapshotError, OSError) as error:
                self._warn(f"skipping the damaged snapshot in memory of step {header.step}: {error}")
        return None

    def count_load(self, snapshot: Snapshot) -> None:
        """Note that training goes on from this snapshot."""
        for buffer, header in self._headers():
            if (header.attempt, header.step) == (snapshot.attempt, snapshot.step):
                write_header(buffer.file, header._replace(loads=header.loads + 1))

    def _headers(self, warn: bool = False) -> list[tuple[Buffer, Header]]:
        found = []
        for buffer in self._buffers:
            try:
                header = read_header(buffer.file)
            except (ValueError, OSError) as error:
                if warn:
                    self._warn(f"skipping a damaged snapshot in memory: {error}")
                continue
            found += [(buffer, header)] if header else []
        return found

    def _make_room(self, buffer: Buffer, tensors: Mapping[Names, torch.Tensor]) -> None:
        """Give the buffer memory with room for these tensors. Raises OSError where there is too little."""
        if {names: form(tensor) for names, tensor in tensors.items()} == {
            names: form(copy) for names, copy in buffer.copies.items()
        }:
            return
        size = size_aside(tensors)
        missing = sum(max(0, PAGE + size - os.fstat(each.file).st_size) for each in self._buffers)
        free = read_memory().left
        if missing > free // 2:  # the other half is for the writer's copy, and for whoever else needs some
            raise OSError(f"they need {missing >> 20} MiB, and no more than half of the {free >> 20} MiB left is taken")
        write_header(buffer.file, None)
        os.ftruncate(buffer.file, PAGE + size)  # what lies beyond is that of an earlier attempt
        os.posix_fallocate(buffer.file, 0, PAGE + size)
        mapped = mmap.mmap(buffer.file, PAGE + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        buffer.memory = torch.frombuffer(mapped, dtype=torch.uint8)[PAGE:]
        buffer.copies = set_aside(tensors, buffer.memory)
        if any(tensor.is_cuda for tensor in tensors.values()):
            pin(buffer.memory)
            weakref.finalize(buffer, unpin, buffer.memory).atexit = False

    def _finish(
        self,
        buffer: Buffer,
        snapshot: Snapshot,
        ready: Callable[[], float],
        sound: Callable[[list[torch.Tensor]], bool],
    ) -> None:
        assert buffer.memory is not None
        be_humble()
        waited = ready()
        if sound([copy for copy in buffer.copies.values() if copy.is_floating_point()]):
            described = json.dumps({"state": snapshot.state, "tensors": describe_copies(buffer)}).encode()
            with suppress(OSError):  # then the one before counts
                os.pwrite(buffer.file, described, PAGE + buffer.memory.nbytes)
                write_header(buffer.file, Header(
                    snapshot.step, snapshot.attempt, 0, buffer.memory.nbytes, len(described),
                    checksum(buffer.memory), zlib.crc32(described),
                ))  # fmt: skip
                self._next = (self._next + 1) % 2
        on_gpu = any(tensor.is_cuda for tensors in snapshot.tensors.values() for tensor in tensors.values())
        self.seconds += waited if on_gpu else time.thread_time()

    def _give_up(self, why: str) -> None:
        self._buffers.clear()
        self._warn(f"no snapshots in memory, only those on the disk: {why}")


def checksum(memory: torch.Tensor) -> int:
    """The sum of memory, 8 bytes at a time, modulo 2**64.

    At the speed of memory, 2.4 ms for 10 million float32 where crc32 takes 40, and no flipped bit, lost piece or mixture of two
    snapshots leaves it as it is, but by a chance of one in 2**64. Nobody forges what nobody else can write to.
    """
    return int(memory.view(torch.int64).sum())


def describe_copies(buffer: Buffer) -> list[tuple[str, str, list[int], str, int]]:
    """File, name, shape, type and place of each tensor in a buffer, as JSON can carry them."""
    assert buffer.memory is not None
    start = buffer.memory.data_ptr()
    return [
        (stem, name, list(copy.shape), str(copy.dtype).removeprefix("torch."), copy.data_ptr() - start)
        for (stem, name), copy in buffer.copies.items()
    ]


def load_buffer(file: int, header: Header) -> Snapshot:
    """The snapshot in an open buffer, in memory of this process's own. Raises SnapshotError, OSError."""
    memory = torch.empty(header.data, dtype=torch.uint8)
    read_into(memory.numpy().data, file, PAGE)
    described = os.pread(file, header.described, PAGE + header.data)
    if header.data % 8 or checksum(memory) != header.checksum or zlib.crc32(described) != header.crc:
        raise SnapshotError("its checksum does not fit")
    try:
        told: dict[str, Any] = json.loads(described)
        tensors: dict[str, dict[str, torch.Tensor]] = {}
        for stem, name, shape, dtype, begin in told["tensors"]:
            if dtype not in DTYPES:
                raise ValueError(f"no type {dtype}")
            kind: torch.dtype = getattr(torch, dtype)
            size = torch.Size(shape).numel() * kind.itemsize
            # A clone: whoever takes over one tensor shall not hold the memory of all.
            tensors.setdefault(stem, {})[name] = memory[begin : begin + size].view(kind).view(shape).clone()
        return Snapshot(header.step, dict(told["state"]), tensors, header.attempt)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise SnapshotError(f"it makes no sense ({error!r})") from error


def read_into(memory: memoryview, file: int, begin: int) -> None:
    """Fill memory with what an open file has from `begin` on. Raises SnapshotError where that is too little, OSError."""
    done = 0
    while done < len(memory):
        read = os.preadv(file, [memory[done : done + PIECE]], begin + done)
        if not read:
            raise SnapshotError("it is cut short")
        done += read
