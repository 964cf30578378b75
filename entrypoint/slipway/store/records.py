"""A run's records in a store: what was started, its outcome, options and metrics, each as the newest attempt wrote it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from slipway.protocol import files
from slipway.protocol.durable import replace_file
from slipway.store.claims import highest_claim, read_claim
from slipway.store.layout import RECORDS, record_folder
from slipway.store.objects import MissingObjectError, ObjectStore

RECORD = re.compile(r"attempt-(\d{8})/record/(.+)")


def largest(name: str) -> int:
    """The bytes that a record has at most."""
    return files.METRICS_LARGEST if name == files.METRICS_FILE else files.LARGEST


class RecordCopy:
    """Copies the records of a run directory that have changed since it did."""

    def __init__(self, store: ObjectStore, run: str, attempt: int, path: Path) -> None:
        self._store, self._folder, self._path = store, record_folder(run, attempt), path
        self._copied: dict[str, tuple[int, int]] = {}

    def copy(self, names: tuple[str, ...] = RECORDS) -> None:
        """Copy those of the `names` that have changed. Raises StoreError."""
        for name in names:
            try:
                found = (self._path / name).lstat()
                seen = (found.st_mtime_ns, found.st_size)
                if self._copied.get(name) == seen:
                    continue
                content = files.read_run_bytes(self._path / name, largest(name))
            except OSError as error:  # not there yet, or a disk that is away
                if error.errno in files.NO_FILE:
                    self._store.odd.add(f"{self._path / name} {error.strerror}, so it is not copied")
                continue
            self._store.write(f"{self._folder}{name}", content)
            self._copied[name] = seen


def fetch_records(store: ObjectStore, run: str, path: Path, *, always: bool = False) -> bool:
    """Fetch a run's records if later than those here, or `always`; whether there are any. Raises StoreError, OSError."""
    newest = highest_claim(store, run)
    if newest is None:
        return False
    record = read_claim(store, run, newest).get("run")
    if not isinstance(record, dict):
        return False
    if not always and files.attempt_in(record) <= files.attempt_in(files.read_json(path / files.RUN_FILE)):
        return False
    found: dict[str, tuple[int, str]] = {}
    for name in store.list_objects(f"{run}/"):
        if kind := RECORD.fullmatch(name.removeprefix(f"{run}/")):
            found[kind[2]] = max(found.get(kind[2], (-1, "")), (int(kind[1]), name))
    path.mkdir(parents=True, exist_ok=True)
    for name in RECORDS:
        if name in found:
            try:
                replace_file(path / name, store.read(found[name][1], largest(name)))
            except MissingObjectError:  # deleted by an attempt that began just now
                continue
    replace_file(
        path / files.RUN_FILE, json.dumps(record, indent=1) + "\n"
    )  # last: with it the others count as fetched
    return True
