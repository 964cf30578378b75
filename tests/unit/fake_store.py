"""A store in memory that fails where a test wants it to, and snapshots to copy to it."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from slipway.protocol.files import LARGEST
from slipway.protocol.snapshots import MANIFEST, part_name, snapshot_name
from slipway.store.catalog import Catalog, StoredSnapshot
from slipway.store.objects import MissingObjectError, ObjectFacts, ObjectStore, UnreachableError


class KilledError(BaseException):
    """The process was killed at this request; nothing that it would do afterwards happens."""


class FakeStore:
    """Objects in a dictionary. `before` is called at each request with what is asked; `requests` counts them by kind; `now` is the
    store's clock (Unix seconds).
    """

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.now, self._times = 1_795_000_000.0, dict[str, float]()
        self.before: Callable[[str, str], None] = lambda kind, name: None
        self.after: Callable[[str, str], None] = lambda kind, name: None
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.RLock()
        self.odd = set[str]()

    def _note(self, kind: str, name: str) -> None:
        self.requests.append((kind, name))
        self.before(kind, name)

    def list_objects(self, prefix: str) -> dict[str, int]:
        self._note("list", prefix)
        with self._lock:
            return {name: len(content) for name, content in self.objects.items() if name.startswith(prefix)}

    def list_folders(self, prefix: str) -> list[str]:
        self._note("list", prefix)
        with self._lock:
            rest = [name.removeprefix(prefix) for name in self.objects if name.startswith(prefix)]
            return sorted({name.partition("/")[0] for name in rest if "/" in name})

    def read(self, name: str, most: int = LARGEST) -> bytes:
        self._note("read", name)
        with self._lock:
            if name not in self.objects:
                raise MissingObjectError(f"{name} is missing")
            if len(self.objects[name]) > most:
                self.odd.add(said := f"{name} has more than {most >> 20} MiB, so it is skipped")
                raise MissingObjectError(said)
            return self.objects[name]

    def find(self, name: str) -> dict[str, ObjectFacts]:
        self._note("find", name)
        with self._lock:
            facts = {each: ObjectFacts(len(content), md5(content)) for each, content in self.objects.items()}
        if name in facts:
            return {name: facts[name]}
        return {each: each_facts for each, each_facts in facts.items() if not name or each.startswith(f"{name}/")}

    def written(self, name: str) -> float:
        self._note("written", name)
        if name not in self.objects:
            raise MissingObjectError(f"{name} is missing")
        return self._times.get(name, self.now)

    def read_part(self, name: str, facts: ObjectFacts, begin: int, end: int) -> bytes:
        content = self.read(name, 1 << 60)
        if (len(content), md5(content)) != facts:
            raise MissingObjectError(f"{name} has changed since it was listed")
        return content[begin:end]

    def write(self, name: str, content: bytes) -> None:
        self._note("write", name)
        with self._lock:
            self.objects[name], self._times[name] = content, self.now
            self.after("write", name)

    def create(self, name: str, content: bytes) -> bool:
        self._note("create", name)
        with self._lock:
            if name in self.objects:
                return False
            self.objects[name], self._times[name] = content, self.now
            self.after("create", name)
            return True

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self._note("delete", name)
            self.objects.pop(name, None)
            self.after("delete", name)


def md5(content: bytes) -> str:
    """What S3 has as the tag of an object that was written in one request."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Fault:
    """One request of a store fails: the one of this number from now, before or after it has its effect, for good (a kill) or not."""

    def __init__(self, store: FakeStore, dice: random.Random, number: int) -> None:
        self._left, self._after, self._kills = number, dice.random() < 0.5, dice.random() < 0.5
        self._dead = False
        store.before = self._before
        store.after = lambda kind, name: self._strike() if self._left == 0 and self._after and not self._dead else None

    def _before(self, kind: str, name: str) -> None:
        if self._dead:
            raise KilledError
        self._left -= 1
        if self._left == 0 and not self._after:
            self._strike()

    def _strike(self) -> None:
        self._left = -1
        if self._kills:
            self._dead = True
            raise KilledError
        raise UnreachableError("the connection was reset")


def calm(store: FakeStore) -> None:
    """No request of the store fails from here on."""
    store.before = store.after = lambda kind, name: None


def make_snapshot(
    run: Path,
    step: int,
    attempt: int = 1,
    part: int = 0,
    parts: list[int] | None = None,
    size: int = 40,
    clean: int | None = None,
) -> Path:
    """A snapshot on the disk with a model of so many bytes, as slipway/train/snapshots/snapshot.py writes it."""
    folder = run / "snapshots" / (part_name(part) if part else "") / snapshot_name(step)
    folder.mkdir(parents=True)
    state = json.dumps({"parts": parts, **({} if clean is None else {"clean": clean})}).encode()
    model = random.Random(step * 1000 + part).randbytes(size)
    files = {"state.json": state, "model.safetensors": model}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    facts = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()
    }
    manifest = {"format": 1, "step": step, "attempt": attempt, "files": facts}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def is_valid(store: FakeStore, stored: StoredSnapshot) -> bool:
    """Whether every file is what the manifest says, byte for byte."""
    for file in stored.files.values():
        content = b"".join(store.objects[name] for name in file.objects)
        if (len(content), hashlib.sha256(content).hexdigest()) != (file.size, file.sha256):
            return False
    return True


def steps_in(store: ObjectStore, run: str = "run") -> list[int]:
    """The steps of the complete snapshots in a store, newest first."""
    catalog = Catalog(store, run)
    catalog.refresh()
    return [each[0].place.step for each in catalog.sets()]
