"""Snapshots that a training has set aside, since they may contain wrong numbers: their copies do not count any more either."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.files import read_run_bytes
from slipway.protocol.snapshots import MANIFEST, WITHDRAWN, list_suspects, part_folder
from slipway.store.catalog import Catalog
from slipway.store.objects import ObjectStore
from slipway.store.retention import remove


class Suspect(NamedTuple):
    """A snapshot that was set aside, or one part of it: the folder in which it is now, and its manifest."""

    path: Path
    part: int
    manifest: bytes


def find_suspects(run: Path, part: int) -> list[Suspect]:
    """The snapshots of a part that were set aside in a run directory, and of which the store may still have copies that count."""
    found = []
    for path in list_suspects(part_folder(run, part)):
        with suppress(OSError):  # it was deleted, or the disk is away for a while
            if not (path / WITHDRAWN).exists():
                found.append(Suspect(path, part, read_run_bytes(path / MANIFEST)))
    return found


def withdraw(store: ObjectStore, run: str, attempt: int, catalog: Catalog, suspect: Suspect) -> None:
    """Delete the copies of a snapshot that was set aside.

    `catalog` has been looked at since they were stored. Raises StoreError, and SupersededAttemptError where a later attempt has
    claimed the run.
    """
    for place, files in catalog.objects.items():
        if place.part == suspect.part and catalog.manifest(place) == suspect.manifest:
            remove(store, run, attempt, [catalog.name(place, file) for file in files])
