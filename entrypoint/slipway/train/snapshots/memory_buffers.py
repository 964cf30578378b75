"""Snapshots in memory that outlives this process: two buffers, used in turn, that the node's launcher holds.

A snapshot in memory has the same content as one on disk. The tensors are copied as the writer copies them (writer.py); a thread
then checks that all numbers are finite, sums them and writes the header (protocol/memory.py). `MemoryRhythm` decides at which
steps snapshots are taken: as often as costs next to nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch

from slipway.protocol.cgroups import read_memory
from slipway.protocol.memory import LOADS, PAGE, Header, read_header, write_header
from slipway.train.snapshots.snapshot import ANY, Snapshot, SnapshotError, Suspicion
from slipway.train.snapshots.tensors import DTYPES, sum_of_bits
from slipway.train.snapshots.writer import Names, aligned, be_humble, copy_all, form, pin, set_aside, size_aside, unpin

PIECE = 2**26  # bytes that are read or allocated at once


@dataclass
class Buffer:
    """An open file and, once this process writes to it, the place in it for each tensor, in the words after the header."""

    file: int
    words: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    copies: dict[Names, torch.Tensor] = field(default_factory=dict)
    places: str = ""  # where the copies are, as JSON


class MemoryBuffers:
    """The two buffers of this process. Without paths, nothing is stored."""

    def __init__(self, paths: Sequence[str], warn: Callable[[str], None], sharing: int = 1) -> None:
        """Open the buffers. `warn` is called once if nothing can be stored, and for each snapshot that is passed over.

        `sharing`: how many processes of this node store snapshots, each as many bytes as this one.
        """
        self._buffers: list[Buffer] = []
        self._warn, self._sharing = warn, sharing
        self._failure, self._closed = "", False
        self._making_room = self._keeping = Thread()
        self._next = 0  # the buffer to write to next, never the one with the newest snapshot
        self.seconds = 0.0  # of the last snapshot that training could have used
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
        """Whether snapshots are stored here."""
        return bool(self._buffers)

    def start(self, snapshot: Snapshot, sound: Callable[[list[torch.Tensor]], bool]) -> bool:
        """Start storing a snapshot; its tensors may change afterwards. It is valid if its floating-point tensors are `sound`.

        Returns False, without storing it, while space is being allocated, which may take seconds.
        """
        self.wait()
        if self._making_room.is_alive():
            return False
        if self._failure:
            self._give_up(self._failure)
            return False
        buffer = self._buffers[self._next]
        tensors = {(stem, name): part for stem, parts in snapshot.tensors.items() for name, part in parts.items()}
        if {names: form(tensor) for names, tensor in tensors.items()} != {
            names: form(copy) for names, copy in buffer.copies.items()
        }:
            self._making_room = Thread(
                target=self._make_room, args=(buffer, tensors, list(snapshot.tensors)), daemon=True
            )
            self._making_room.start()
            return False
        write_header(buffer.file, None)
        ready = copy_all(tensors, buffer.copies)
        self._keeping = Thread(target=self._finish, args=(buffer, snapshot, ready, sound), daemon=True)
        self._keeping.start()
        return True

    def wait(self) -> None:
        """Return when the snapshot in progress is stored."""
        if self._keeping.is_alive():
            self._keeping.join()

    def wait_for_room(self) -> None:
        """Return when no space is being allocated."""
        if self._making_room.is_alive():
            self._making_room.join()

    def close(self) -> None:
        """Leave no thread behind."""
        self._closed = True
        self.wait()
        self.wait_for_room()

    def forget(self) -> None:
        """Drop all snapshots: training went back to an earlier one."""
        self.wait()
        for buffer in self._buffers:
            write_header(buffer.file, None)

    def forget_suspects(self, found: Suspicion) -> None:
        """Drop snapshots that may contain wrong numbers."""
        for buffer, header in self._headers():
            if header.attempt < found.attempt and header.step > found.step:
                write_header(buffer.file, None)
                self._warn(f"dropped, since it may contain wrong numbers: the snapshot in memory of step {header.step}")

    def load(self, newer_than: tuple[int, int], until: tuple[float, float] = ANY) -> Snapshot | None:
        """The newest intact snapshot after this attempt and step, at most `until`, or None. Warns of each that is passed over."""
        for buffer, header in sorted(self._headers(warn=True), key=lambda pair: pair[1][:2][::-1], reverse=True):
            if (header.attempt, header.step) <= newer_than:
                break
            if (header.attempt, header.step) > until:
                continue
            if header.loads >= LOADS:
                self._warn(
                    f"skipping the snapshot in memory of step {header.step}: {LOADS} attempts that resumed from it failed"
                )
                continue
            try:
                return load_buffer(buffer.file, header)
            except (SnapshotError, OSError) as error:
                self._warn(f"skipping the damaged snapshot in memory of step {header.step}: {error}")
        return None

    def count_load(self, snapshot: Snapshot) -> None:
        """Record that training resumes from this snapshot."""
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

    def _make_room(self, buffer: Buffer, tensors: Mapping[Names, torch.Tensor], stems: Sequence[str]) -> None:
        be_humble()
        size = size_aside(tensors)
        try:
            missing = sum(max(0, PAGE + size - os.fstat(each.file).st_size) for each in self._buffers)
            free = read_memory().left // self._sharing
            if missing > free // 2:  # the other half is for the writer's copy and for others
                self._failure = (
                    f"they need {missing >> 20} MiB, which is more than half of the {free >> 20} MiB that are free"
                )
                return
            write_header(buffer.file, None)
            os.ftruncate(buffer.file, PAGE + size)  # what is beyond belongs to an earlier attempt
            memory = torch.frombuffer(mmap.mmap(buffer.file, PAGE + size), dtype=torch.uint8)[PAGE:]
            for begin in range(0, size, PIECE):
                if self._closed:
                    return
                os.posix_fallocate(buffer.file, PAGE + begin, min(PIECE, size - begin))
                memory[begin : begin + PIECE : PAGE].zero_()  # so that no copy has to wait for a page to be mapped
            if any(tensor.is_cuda for tensor in tensors.values()):
                pin(memory)
                weakref.finalize(buffer, unpin, memory).atexit = False
            copies = set_aside(tensors, memory)
            for copy in copies.values():  # so that the sum of all words is that of all tensors
                end = offset(copy) - PAGE + copy.nbytes
                memory[end : aligned(end)].zero_()
            buffer.places = json.dumps(describe_copies(copies, stems))
            buffer.words, buffer.copies = memory.view(torch.int64), copies
        except (OSError, ValueError) as error:
            self._failure = str(error)

    def _finish(
        self,
        buffer: Buffer,
        snapshot: Snapshot,
        ready: Callable[[], float],
        sound: Callable[[list[torch.Tensor]], bool],
    ) -> None:
        be_humble()
        waited = ready()
        copies = list(buffer.copies.values())
        if sound([copy for copy in copies if copy.is_floating_point()]):
            described = f'{{"state": {json.dumps(snapshot.state)}, "tensors": {buffer.places}}}'.encode()
            with suppress(OSError):  # then the previous snapshot counts
                os.pwrite(buffer.file, described, PAGE + buffer.words.nbytes)
                write_header(buffer.file, Header(
                    snapshot.step, snapshot.attempt, 0, buffer.words.nbytes, len(described),
                    checksum([buffer.words]), zlib.crc32(described),
                ))  # fmt: skip
                self._next = (self._next + 1) % 2
        on_gpu = any(tensor.is_cuda for tensors in snapshot.tensors.values() for tensor in tensors.values())
        self.seconds = waited if on_gpu else time.thread_time()

    def _give_up(self, why: str) -> None:
        self._buffers.clear()
        self._warn(f"no snapshots in memory, only those on the disk: {why}")


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return the sum of all tensors' bits modulo 2**64, at memory speed."""
    return sum(int(sum_of_bits(tensor)) for tensor in tensors) % 2**64


def describe_copies(
    copies: Mapping[Names, torch.Tensor], stems: Iterable[str]
) -> dict[str, list[tuple[str, list[int], str, int]]]:
    """Return name, shape, type and place of each tensor in a buffer, by file, for JSON."""
    described: dict[str, list[tuple[str, list[int], str, int]]] = {stem: [] for stem in stems}
    for (stem, name), copy in copies.items():
        dtype = str(copy.dtype).removeprefix("torch.")
        described[stem].append((name, list(copy.shape), dtype, offset(copy)))
    return described


def offset(copy: torch.Tensor) -> int:
    """Return where in a buffer's file the copy begins, in bytes."""
    return int(copy.storage_offset()) * copy.itemsize


def load_buffer(file: int, header: Header) -> Snapshot:
    """Return the snapshot in an open buffer, copied to this process's memory. Raises SnapshotError, OSError."""
    described = os.pread(file, header.described, PAGE + header.data)
    if zlib.crc32(described) != header.crc:
        raise SnapshotError("its checksum does not match")
    try:
        stored: dict[str, Any] = json.loads(described)
        tensors = {
            str(stem): {str(name): load_tensor(file, *place) for name, *place in places}
            for stem, places in stored["tensors"].items()
        }
        snapshot = Snapshot(header.step, dict(stored["state"]), tensors, header.attempt)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise SnapshotError(f"it is invalid ({error!r})") from error
    if checksum(tensor for named in tensors.values() for tensor in named.values()) != header.checksum:
        raise SnapshotError("its checksum does not match")
    return snapshot


def load_tensor(file: int, shape: list[int], dtype: str, begin: int) -> torch.Tensor:
    """Read a tensor from an open buffer. Raises ValueError, RuntimeError, OSError."""
    if dtype not in DTYPES:
        raise ValueError(f"there is no type {dtype}")
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    memory, done = tensor.view(-1).view(torch.uint8).numpy().data, 0
    while done < len(memory):
        read = os.preadv(file, [memory[done : done + PIECE]], begin + done)
        if not read:
            raise ValueError("it is truncated")
        done += read
    return tensor
