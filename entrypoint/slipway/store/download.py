"""How a snapshot gets from a store into a run directory: verified while it comes, and renamed when it is complete."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from slipway.protocol.durable import FileFacts, clear, hidden, make_folder, sync_folder, write_file
from slipway.protocol.files import SNAPSHOTS, held_folder
from slipway.protocol.snapshots import MANIFEST, part_folder, snapshot_name
from slipway.store.catalog import StoredSnapshot
from slipway.store.layout import PIECE
from slipway.store.objects import ObjectStore

T = TypeVar("T")


class CorruptError(Exception):
    """What came from the store is not what the manifest says; the message names the file."""


def download(store: ObjectStore, stored: StoredSnapshot, run: Path, taken: float, parallel: int) -> None:
    """Fetch a snapshot into a run directory.

    Its files get the time when the snapshot was `taken` (Unix seconds), by which readers know how old it is. Raises
    CorruptError, OSError and StoreError: MissingObjectError where it was deleted meanwhile.
    """
    folder = part_folder(run, stored.place.part)
    make_folder(run / SNAPSHOTS)
    make_folder(folder)
    final = folder / snapshot_name(stored.place.step)
    with held_folder(folder) as held:
        temporary = hidden(held / final.name, f"fetching.{os.getpid()}")
        temporary.mkdir()
        try:
            for name, file in stored.files.items():
                _fetch_file(store, file.objects, temporary / name, FileFacts(file.size, file.sha256), parallel)
            write_file(temporary / MANIFEST, [stored.manifest])
            for name in (*stored.files, MANIFEST):
                os.utime(temporary / name, (taken, taken))
            sync_folder(temporary)
            if os.path.lexists(held / final.name):  # damaged, or of another attempt: the next save removes it
                (held / final.name).rename(hidden(held / final.name, "replaced"))
            temporary.rename(held / final.name)
            sync_folder(held)
        except BaseException:
            clear(temporary)
            raise


def _fetch_file(store: ObjectStore, objects: Sequence[str], path: Path, expected: FileFacts, parallel: int) -> None:
    written = write_file(path, read_ahead(lambda name: store.read(name, PIECE), objects, parallel))
    if written != expected:
        raise CorruptError(f"{objects[0]} is not what its manifest says")


def read_ahead(read: Callable[[T], bytes], items: Iterable[T], parallel: int) -> Iterator[bytes]:
    """What `read` returns for each of the items, in their order; several are read at once."""
    with ThreadPoolExecutor(parallel) as pool:
        reading: deque[Future[bytes]] = deque()
        try:
            for item in items:
                if len(reading) == parallel:
                    yield reading.popleft().result()
                reading.append(pool.submit(read, item))
            while reading:
                yield reading.popleft().result()
        finally:
            for future in reading:
                future.cancel()
