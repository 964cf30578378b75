"""What an attempt deletes in a store: only what its own newer snapshot, which is complete there, replaces."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slipway.protocol.snapshots import MANIFEST, Version
from slipway.store.catalog import Catalog
from slipway.store.claims import require_newest
from slipway.store.layout import Location, parse_snapshot
from slipway.store.objects import ObjectStore

BATCH = 1000  # names that one request deletes (S3)
OTHERS = re.compile(r"attempt-(\d{8})/(record/)?.*|claims/\.(\d{8})\..*", re.DOTALL)


def clean(store: ObjectStore, run: str, attempt: int, keep: int, catalog: Catalog) -> None:
    """Keep the newest `keep` complete snapshots, and the newest of a step until which all ranks are known to have computed the
    same, by what the newest of all says. Delete older ones, what interrupted uploads left, and records of earlier attempts.

    `catalog` has been looked at since the newest snapshot was stored. Raises StoreError, and SupersededAttemptError before the
    first request after a later attempt has claimed the run.
    """
    complete = list(catalog.sets())
    own = next((each[0].place for each in complete if each[0].place.attempt == attempt), None)
    if own is None:
        return
    oldest = min(stored.version for each in complete[:keep] for stored in each)
    until = catalog.clean_until(complete[0][0])
    needed = complete[:keep] + [each for each in complete if each[0].place.step <= until][:1]
    kept = {stored.place for each in needed for stored in each}
    for place in sorted(catalog.objects):
        if place not in kept and _is_replaced(place, own, oldest):
            remove(store, run, attempt, [catalog.name(place, file) for file in catalog.objects[place]])
    _delete(store, run, attempt, _left_behind(store, run, attempt))


def remove(store: ObjectStore, run: str, attempt: int, names: Iterable[str]) -> None:
    """Delete the objects of a snapshot, its manifest first: half a snapshot must not look like a damaged one.

    Raises StoreError, and SupersededAttemptError before the first request after a later attempt has claimed the run.
    """
    listed = list(names)
    for is_manifest in (True, False):
        _delete(store, run, attempt, [name for name in listed if name.endswith(f"/{MANIFEST}") == is_manifest])


def _is_replaced(place: Location, own: Location, oldest: Version) -> bool:
    """Whether the newest complete snapshot of this attempt, `own`, replaces what is at a place that is not kept.

    In this attempt what is newer than the `oldest` that is kept may just be on its way, from another node.
    """
    if place.attempt == own.attempt:
        return place.step < own.step and (place.attempt, place.step) < oldest
    return place.attempt < own.attempt


def _left_behind(store: ObjectStore, run: str, attempt: int) -> list[str]:
    """Of earlier attempts: the records, where this attempt has its own, and what was never finished."""
    names = [name.removeprefix(f"{run}/") for name in store.list_objects(f"{run}/")]
    has_own = any(name.startswith(f"attempt-{attempt:08d}/record/") for name in names)
    found = []
    for name in names:
        kind = OTHERS.fullmatch(name)
        if kind and not parse_snapshot(name) and int(kind[1] or kind[3]) < attempt and (has_own or not kind[2]):
            found.append(f"{run}/{name}")
    return found


def _delete(store: ObjectStore, run: str, attempt: int, names: Iterable[str]) -> None:
    """Delete objects, and look before each request whether this attempt still is the newest."""
    listed = list(names)
    for begin in range(0, len(listed), BATCH):
        require_newest(store, run, attempt)
        store.delete(listed[begin : begin + BATCH])
