"""How a snapshot gets into a store: its data first, in pieces of bounded size, and its manifest last.

Pieces are objects of their own. So nothing hidden stays behind in a bucket when an upload is interrupted, as the parts of a
multipart upload do; no request is larger than a piece; and a store needs no multipart uploads.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path

from slipway.protocol.files import open_run_file, read_run_bytes
from slipway.protocol.snapshots import MANIFEST, ManifestError, parse_manifest
from slipway.store.claims import require_newest
from slipway.store.layout import PIECE, Location
from slipway.store.objects import ObjectStore, StoreError
from slipway.store.retention import remove

SMALLEST = 4 << 20  # of a piece, where the rate is limited


class VanishedError(Exception):
    """The snapshot on the disk was deleted before all of its files were open, or is not complete."""


class DamagedError(Exception):
    """The snapshot on the disk is not what its manifest says; the message names the file."""


class AbandonedError(Exception):
    """There is a newer snapshot, and little time."""


class Pace:
    """How fast is copied: `limit` bytes per second (0: as fast as it goes), so many requests at once, of a `piece` at most."""

    def __init__(
        self,
        limit: float = 0.0,
        parallel: int = 4,
        piece: int = PIECE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limit, self.parallel, self._piece, self._clock, self._sleep = limit, parallel, piece, clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def piece(self) -> int:
        """Bytes of a piece: at a limited rate what goes through in about a second."""
        return int(min(self._piece, max(SMALLEST, self._limit))) if self._limit else self._piece

    def wait(self, size: int) -> None:
        """Wait until so many bytes may go."""
        if not self._limit:
            return
        with self._lock:
            now = self._clock()
            begin = max(now, self._next)
            self._next = begin + size / self._limit
        if begin > now:
            self._sleep(begin - now)


def upload(
    store: ObjectStore,
    run: str,
    folder: Path,
    place: Location,
    pace: Pace,
    note: Callable[[int, int], None] = lambda done, total: None,
    abandoned: Callable[[], bool] = lambda: False,
) -> None:
    """Copy a snapshot's `folder` to its place in the store. `note` is called with the bytes that are done, and with all bytes.

    If this attempt has stored another snapshot of this step, and has then returned to an earlier one, that is deleted first.

    Raises VanishedError and DamagedError for the folder, AbandonedError, StoreError, and SupersededAttemptError where a later
    attempt has claimed the run. Whatever it raises, readers find no manifest, and so no snapshot.
    """
    require_newest(store, run, place.attempt)
    prefix = f"{run}/{place.folder}"
    its_manifest = f"{prefix}{MANIFEST}"
    with ExitStack() as stack:
        manifest, files = _open_all(folder, stack)
        there = store.list_objects(prefix)
        if its_manifest in there and store.read(its_manifest) != manifest:
            remove(store, run, place.attempt, there)
        total, done = sum(os.fstat(file.fileno()).st_size for file, _ in files.values()), 0
        sent = _Sender(store, pace, stack)
        for name, (file, sha256) in files.items():
            digest = hashlib.sha256()
            for piece, content in _pieces(name, file, pace.piece):
                if abandoned():
                    raise AbandonedError
                digest.update(content)
                sent.send(f"{prefix}{piece}", content)
                done += len(content)
                note(done, total)
            if digest.hexdigest() != sha256:
                raise DamagedError(f"{folder / name} is not what its manifest says")
        sent.wait()
    require_newest(store, run, place.attempt)
    if not store.create(its_manifest, manifest) and store.read(its_manifest) != manifest:
        raise StoreError(f"{its_manifest} is not the one that was written last, so the snapshot is copied again")


def _open_all(folder: Path, stack: ExitStack) -> tuple[bytes, Mapping[str, tuple[BufferedReader, str]]]:
    """The manifest, and by name each file and its checksum. They are open from here on, so the snapshot may be deleted."""
    try:
        manifest = read_run_bytes(folder / MANIFEST)
        files = parse_manifest(manifest).files
        return manifest, {
            name: (stack.enter_context(open_run_file(folder / name)), facts.sha256) for name, facts in files.items()
        }
    except ManifestError as error:
        raise DamagedError(f"{folder / MANIFEST} {error}") from None
    except OSError as error:
        raise VanishedError(str(error)) from None


def _pieces(name: str, file: BufferedReader, size: int) -> Iterator[tuple[str, bytes]]:
    """The content of a file, by the names of the objects that it becomes."""
    if os.fstat(file.fileno()).st_size <= size:
        yield name, file.read()
        return
    number = 0
    while content := file.read(size):
        yield f"{name}/{number:05d}", content
        number += 1


class _Sender:
    """Writes objects, several at once; what failed is raised by the next call."""

    def __init__(self, store: ObjectStore, pace: Pace, stack: ExitStack) -> None:
        self._store, self._pace = store, pace
        self._pool = stack.enter_context(ThreadPoolExecutor(pace.parallel))
        self._waiting: list[Future[None]] = []

    def send(self, name: str, content: bytes) -> None:
        while len(self._waiting) >= self._pace.parallel:
            self._waiting.pop(0).result()
        self._pace.wait(len(content))
        self._waiting.append(self._pool.submit(self._store.write, name, content))

    def wait(self) -> None:
        while self._waiting:
            self._waiting.pop(0).result()


def verify(folder: Path) -> bool:
    """Whether the files of a snapshot on the disk are what its manifest says."""
    try:
        with ExitStack() as stack:
            _, files = _open_all(folder, stack)
            return all(hashlib.file_digest(file, "sha256").hexdigest() == sha256 for file, sha256 in files.values())
    except (VanishedError, DamagedError, OSError):
        return False
