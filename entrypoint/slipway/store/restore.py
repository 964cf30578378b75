"""What a node fetches before a job resumes: the run's records, and the newest snapshot that its disk does not have."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.durable import remove_tree
from slipway.protocol.files import read_run_bytes
from slipway.protocol.snapshots import MANIFEST, Version, list_snapshots, part_folder, snapshot_version
from slipway.store.catalog import Catalog, StoredSnapshot
from slipway.store.download import CorruptError, download
from slipway.store.objects import MissingObjectError, ObjectStore
from slipway.store.suspects import find_suspects
from slipway.store.upload import verify


class Restored(NamedTuple):
    """What was fetched: the step, bytes, and why newer snapshots in the store were skipped. `newest` is the step of the newest
    one there that can be used, whether it was fetched or not, and `taken` says when that was (Unix seconds).
    """

    step: int | None = None
    size: int = 0
    skipped: tuple[str, ...] = ()
    newest: int | None = None
    taken: float | None = None


def find_local(run: Path, part: int, at_least: Version) -> Version | None:
    """Attempt and step of the newest snapshot of a run directory, at least of this version, whose files are what its manifest
    says; None without one.
    """
    found = [(snapshot_version(path), path) for path in list_snapshots(part_folder(run, part))]
    newer = sorted((each for each in found if each[0] >= at_least), reverse=True)
    return next((version for version, path in newer if verify(path)), None)


def drop_outdated(path: Path, catalog: Catalog) -> None:
    """Delete the snapshots of a run in the cache that the store has no more: the job may have set them aside. Raises OSError."""
    there = {stored.manifest for stored in catalog.snapshots(0)}
    for snapshot in list_snapshots(part_folder(path, 0)):
        try:
            kept = read_run_bytes(snapshot / MANIFEST) in there
        except OSError:
            kept = False
        if not kept:
            remove_tree(snapshot)


def restore(store: ObjectStore, run: str, path: Path, ranks: Collection[int], parallel: int = 4) -> Restored:
    """Fetch what these `ranks` need of the newest complete snapshot that verifies, unless the run directory at `path` has it, or
    a later one. Where all ranks hold the same, that is for rank 0: the others get it from there.

    Raises StoreError, OSError.
    """
    catalog = Catalog(store, run)
    catalog.refresh()
    skipped: list[str] = []
    for stored in catalog.sets():
        step = stored[0].place.step
        if any(each.manifest == aside.manifest for each in stored for aside in find_suspects(path, each.place.part)):
            skipped.append(f"step {step} was set aside on this disk, since it may contain wrong numbers")
            continue
        try:
            taken = catalog.taken(stored[0])
            wanted = _wanted(catalog, stored, ranks)
            lacking = [each for each in wanted if find_local(path, each.place.part, each.version) is None]
            for each in lacking:
                download(store, each, path, taken, parallel)
        except (CorruptError, MissingObjectError) as error:
            skipped.append(f"step {step}: {error}")
            continue
        size = sum(each.size for each in lacking)
        return Restored(step if lacking else None, size, tuple(skipped), step, taken)
    return Restored(skipped=tuple(skipped))


def _wanted(catalog: Catalog, stored: tuple[StoredSnapshot, ...], ranks: Collection[int]) -> list[StoredSnapshot]:
    """Of a snapshot's parts those of these ranks."""
    parts = catalog.parts(stored[0])
    needed = {parts[rank] for rank in ranks if rank < len(parts)} if parts else {0} & {*ranks}
    return [each for each in stored if each.place.part in needed]
