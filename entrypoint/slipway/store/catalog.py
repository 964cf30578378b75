"""What a store has of a run, and which of it counts: a snapshot whose manifest is there, with all files that it names.

Sizes are checked here, from one listing; checksums when a snapshot is fetched (download.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slipway.protocol.files import parse_json
from slipway.protocol.snapshots import MANIFEST, STATE, ManifestError, Version, parse_manifest
from slipway.store.layout import PIECE, Location, parse_snapshot
from slipway.store.objects import MissingObjectError, ObjectStore


class StoredFile(NamedTuple):
    """A file of a snapshot: its size and checksum by the manifest, and the objects that it is made of."""

    size: int
    sha256: str
    objects: tuple[str, ...]


class StoredSnapshot(NamedTuple):
    """A snapshot in a store, or one part of it, whose objects all have the right sizes. `attempt` is the one that wrote it."""

    place: Location
    attempt: int
    manifest: bytes
    files: Mapping[str, StoredFile]

    @property
    def version(self) -> Version:
        """What orders the snapshots of a run."""
        return self.attempt, self.place.step

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return len(self.manifest) + sum(file.size for file in self.files.values())


class StateFacts(NamedTuple):
    """What the state of a snapshot says that matters here: see `Catalog.parts` and `Catalog.clean_until`."""

    parts: tuple[int, ...]
    clean: int


class Catalog:
    """The snapshots of a run in a store. Each manifest is read once: one that changes is deleted before."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store, self._run = store, run
        self._manifests: dict[Location, bytes] = {}
        self._facts: dict[tuple[Location, bytes], StateFacts] = {}
        self.objects: dict[Location, dict[str, int]] = {}  # by place: each object below its folder, and its size

    def refresh(self) -> None:
        """List the run's objects again."""
        objects: dict[Location, dict[str, int]] = {}
        for name, size in self._store.list_objects(f"{self._run}/").items():
            if found := parse_snapshot(name.removeprefix(f"{self._run}/")):
                objects.setdefault(found[0], {})[found[1]] = size
        self.objects = objects
        self._manifests = {place: text for place, text in self._manifests.items() if MANIFEST in objects.get(place, {})}

    def forget(self, place: Location) -> None:
        """Read the manifest at a place again: another one is about to be written there."""
        self._manifests.pop(place, None)

    def name(self, place: Location, file: str) -> str:
        """The name of an object of a snapshot in the store."""
        return f"{self._run}/{place.folder}{file}"

    def snapshots(self, part: int) -> list[StoredSnapshot]:
        """The valid snapshots of a part, newest first."""
        found = [stored for place in self.objects if place.part == part and (stored := self.snapshot(place))]
        return sorted(found, key=lambda stored: (stored.version, stored.place.attempt), reverse=True)

    def sets(self) -> Iterator[tuple[StoredSnapshot, ...]]:
        """The snapshots of which every part is there, newest first. One that has no parts is a set of its own."""
        for first in self.snapshots(0):
            if (parts := self.parts(first)) is None:
                continue
            places = [first.place._replace(part=part) for part in sorted({*parts} - {0})]
            found = [self.snapshot(place) for place in places]
            whole = [stored for stored in found if stored and stored.version == first.version]
            if len(whole) == len(places):
                yield (first, *whole)

    def snapshot(self, place: Location) -> StoredSnapshot | None:
        """The snapshot at a place; None where it is not complete."""
        if (text := self.manifest(place)) is None:
            return None
        try:
            manifest = parse_manifest(text)
        except ManifestError as error:
            self._store.odd.add(f"{self.name(place, MANIFEST)} is skipped: it {error}")
            return None
        there = self.objects[place]
        files = {
            name: StoredFile(*facts, self._find(place, name, facts.size, there))
            for name, facts in manifest.files.items()
        }
        whole = manifest.step == place.step and STATE in files and all(file.objects for file in files.values())
        return StoredSnapshot(place, manifest.attempt or place.attempt, text, files) if whole else None

    def taken(self, stored: StoredSnapshot) -> float:
        """When the upload of a snapshot began, in Unix seconds by the store's clock.

        The snapshot itself is a little older, but its own time is lost with the disk that it was written to. Raises
        MissingObjectError where it has been deleted since it was listed.
        """
        return self._store.written(stored.files[min(stored.files)].objects[0])  # upload.py sends files sorted by name

    def parts(self, stored: StoredSnapshot) -> tuple[int, ...] | None:
        """For each rank of the job the part that it holds; empty where all ranks hold the same, None where nothing says."""
        facts = self._read_facts(stored)
        return facts.parts if facts else None

    def clean_until(self, stored: StoredSnapshot) -> int:
        """The step until which all ranks are known to have computed the same (`clean` in the state); -1 where nothing says."""
        facts = self._read_facts(stored)
        return facts.clean if facts else -1

    def manifest(self, place: Location) -> bytes | None:
        """The manifest at a place; None where there is none."""
        if MANIFEST not in self.objects.get(place, {}):
            return None
        if place not in self._manifests:
            try:
                self._manifests[place] = self._store.read(self.name(place, MANIFEST))
            except MissingObjectError:  # deleted since it was listed
                return None
        return self._manifests[place]

    def _read_facts(self, stored: StoredSnapshot) -> StateFacts | None:
        known = (stored.place, stored.manifest)
        if known not in self._facts:
            try:
                state = parse_json(b"".join(self._store.read(name, PIECE) for name in stored.files[STATE].objects))
            except (ValueError, RecursionError, MissingObjectError):  # damaged, or deleted since it was listed
                return None
            state = state if isinstance(state, dict) else {}
            parts, clean = state.get("parts") or (), state.get("clean")
            self._facts[known] = StateFacts(
                tuple(part for part in parts if type(part) is int), clean if type(clean) is int else -1
            )
        return self._facts[known]

    def _find(self, place: Location, file: str, size: int, there: Mapping[str, int]) -> tuple[str, ...]:
        """The objects of a file that have its size together; none where they do not."""
        if there.get(file) == size:
            return (self.name(place, file),)
        pieces = sorted(name for name in there if name.startswith(f"{file}/") and "/." not in name)
        complete = pieces == [f"{file}/{number:05d}" for number in range(len(pieces))]
        if pieces and complete and sum(there[name] for name in pieces) == size:
            return tuple(self.name(place, name) for name in pieces)
        return ()
