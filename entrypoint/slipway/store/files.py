"""Files from a store (`slipway data fetch s3://BUCKET/PATH`): in place when all of them are complete, and not before.

    FOLDER                                 the files, or the one file
    .FOLDER.fetched.json                   which objects they are
    .FOLDER.fetching-HOST/LISTING/whole    what is complete, until all is
    .FOLDER.fetching-HOST/LISTING/parts    what has come of the others; the next call continues there

LISTING is a hash of the names, sizes and tags of the objects, so what came of other objects is not continued. One process of a
host fetches while others wait. Hosts that share the folder each fetch for themselves, because locks do nothing on some shared
disks; the first one's files stay.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from slipway.protocol.durable import make_folder, remove_tree, replace_file, sync_folder, sync_tree
from slipway.protocol.files import open_regular, read_json
from slipway.store.download import CorruptError, read_ahead
from slipway.store.objects import MissingObjectError, ObjectFacts, ObjectStore, StoreRefusedError, UnreachableError

PIECE = 8 << 20  # bytes of a request
FILES = 4  # that are fetched at once, each with as many requests
PAUSES = (2.0, 5.0, 15.0)  # s before a piece is asked for again
MD5 = re.compile(r"[0-9a-f]{32}")
SUMS = re.compile(r"sha256sums?(\.txt)?", re.IGNORECASE)
SUMS_LARGEST = 256 << 20  # bytes of a list of checksums: one of two million files
SUM = re.compile(r"\\?([0-9a-fA-F]{64})(?: [ *](?:\./)?(.+))?")  # a line of sha256sum


class NoRoomError(Exception):
    """The disk has less room than the files need; the message has both numbers."""


class OtherFilesError(Exception):
    """Something else is where the files are to be; the message says what to do."""


class Fetched(NamedTuple):
    """Where the files are; how many bytes came now, and how many files were compared with a checksum."""

    path: Path
    bytes: int = 0
    compared: int = 0


def find_files(store: ObjectStore, name: str) -> dict[str, ObjectFacts]:
    """The object of this name, as "", or else those below it, by their names from there.

    Raises MissingObjectError where there is none, StoreRefusedError for names that no file can have, and StoreError.
    """
    found = store.find(name)
    if name in found:
        return {"": found[name]}
    files = {each.removeprefix(f"{name}/"): facts for each, facts in found.items()}
    folders = {str(folder) for each in files for folder in PurePosixPath(each).parents}
    for each in sorted(files):
        if each in folders and not files[each].size:
            del files[each]  # what some tools create where a folder is to be shown
        elif each in folders or any(part in ("", ".", "..") for part in each.split("/")) or "\0" in each:
            raise StoreRefusedError(f"there is an object {each!r} in it, which no file here can have as its name")
    if not files:
        raise MissingObjectError("there is neither an object of this name nor one below it")
    return files


def read_sums(store: ObjectStore, name: str, files: Mapping[str, ObjectFacts]) -> dict[str, str]:
    """The sha256 of files, from `SHA256SUMS` or `NAME.sha256` among them. Raises StoreError."""
    if "" in files:
        try:
            text = store.read(f"{name}.sha256").decode(errors="replace")
        except (MissingObjectError, StoreRefusedError):  # S3 does not say what is missing to who may not list
            return {}
        found = SUM.match(text.strip())
        return {"": found[1].lower()} if found else {}
    sums: dict[str, str] = {}
    for each in files:
        single, listed = each.removesuffix(".sha256"), SUMS.fullmatch(PurePosixPath(each).name)
        if (not listed and (single == each or single not in files)) or not files[each].size:
            continue
        if files[each].size > SUMS_LARGEST:
            raise StoreRefusedError(f"{each}, a list of checksums, has more than {SUMS_LARGEST >> 20} MiB")
        content = store.read_part("/".join(filter(None, (name, each))), files[each], 0, files[each].size)
        lines = content.decode(errors="replace").splitlines()
        for found in filter(None, (SUM.fullmatch(line.strip()) for line in lines)):
            named = str(PurePosixPath(each).parent / found[2]) if found[2] else ""
            if named in files:
                sums[named] = found[1].lower()
            elif not listed:
                sums[single] = found[1].lower()
    return sums


def fetch_files(
    store: ObjectStore,
    address: str,
    name: str,
    files: Mapping[str, ObjectFacts],
    target: Path,
    sums: Mapping[str, str],
    *,
    etags: bool = True,
    say: Callable[[str], object] = lambda text: None,
    note: Callable[[int], None] = lambda size: None,
    pauses: Sequence[float] = PAUSES,
) -> Fetched:
    """Fetch the `files` that `find_files` found at `name`, to `target`. Those that are complete since an earlier call are kept.

    They are compared with the `sums` (sha256) that `read_sums` found. Without `etags`, the others are not compared with the MD5
    that their ETag seems to be. `note` is called with the size of each piece.

    Raises OtherFilesError, NoRoomError, CorruptError, StoreError and OSError. `target` is then as it was.
    """
    record = {"address": address, "listing": hash_listing(files)}
    if _is_there(target, record):
        return Fetched(target)
    make_folder(target.parent)
    with _hold(target.with_name(f".{target.name}.fetching-{socket.gethostname()}"), say) as folder:
        if _is_there(target, record):  # whoever held it
            remove_tree(folder)
            return Fetched(target)
        for other in folder.iterdir():
            if other.name != record["listing"]:
                say(f"what an earlier call fetched of other objects is removed: {other}")
                remove_tree(other)
        transfer = Transfer(store, name, files, folder / record["listing"], note, pauses)
        transfer.compare_with(sums, etags=etags)
        transfer.run()
        replace_file(_record_of(target), json.dumps(record))
        _put_in_place(transfer.whole, target, record)
        remove_tree(folder)
    return Fetched(target, transfer.came, len(transfer.sums))


def hash_listing(files: Mapping[str, ObjectFacts]) -> str:
    """A hash of the names, sizes and tags of objects."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:16]


def _record_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched.json")


def _is_there(target: Path, record: Mapping[str, str]) -> bool:
    """Whether just these files are in place. Raises OtherFilesError where others are."""
    if not os.path.lexists(target):
        return False
    found = read_json(_record_of(target))
    if found == record:
        return True
    if found.get("address") == record["address"]:
        raise OtherFilesError(
            f"{target} has other files of {record['address']}, or the store has changed since they were fetched. Nothing is "
            "overwritten: remove it to fetch them again, or name another place with --out."
        )
    raise OtherFilesError(
        f"{target} exists, and was not fetched from {record['address']}. Nothing is overwritten: name another place with --out."
    )


def _put_in_place(whole: Path, target: Path, record: Mapping[str, str]) -> None:
    """Rename what is complete, unless another host that shares the folder has done it meanwhile. Raises OSError."""
    if whole.is_dir():
        sync_tree(whole)
    if not _is_there(target, record):
        try:
            whole.rename(target)
        except OSError:
            if not _is_there(target, record):
                raise
        sync_folder(target.parent)


@contextmanager
def _hold(folder: Path, say: Callable[[str], object]) -> Iterator[Path]:
    """Create a folder and lock it, as the only process of this host. It may be removed or renamed meanwhile."""
    waited = False
    while True:
        make_folder(folder)
        try:
            descriptor = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            )  # what is not ours in it is deleted
        except FileNotFoundError:
            continue  # its holder has just removed it
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    say(f"another process on this machine fetches the same files; waiting for it ({folder})")
                waited = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:  # there are no locks here
                say(
                    f"warning: {folder.parent} has no locks, so do not fetch the same files twice at once on one machine"
                )
            if _is_same(descriptor, folder):
                yield folder
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@dataclass
class Transfer:
    """Files on their way to a folder: in `parts`, until they are complete and right, and then in `whole`."""

    store: ObjectStore
    name: str
    files: Mapping[str, ObjectFacts]
    folder: Path
    note: Callable[[int], None]
    pauses: Sequence[float]
    came: int = 0  # bytes, now
    sums: dict[str, tuple[str, str]] = field(default_factory=dict)  # by file: algorithm and checksum

    def __post_init__(self) -> None:
        """Nothing is created yet."""
        self.whole, self._parts = self.folder / "whole", self.folder / "parts"
        self._over, self._lock = threading.Event(), threading.Lock()

    def compare_with(self, sums: Mapping[str, str], *, etags: bool) -> None:
        """Expect these sha256, and of the other files the MD5 that S3 and Google have as the tag of most objects."""
        tags = {each: facts.tag for each, facts in self.files.items() if etags and MD5.fullmatch(facts.tag)}
        self.sums = {each: ("md5", tag) for each, tag in tags.items()}
        self.sums |= {each: ("sha256", value) for each, value in sums.items() if each in self.files}

    def run(self) -> None:
        """Fetch what is not there yet. Raises as `fetch_files`."""
        make_folder(self._parts)
        if "" not in self.files:
            make_folder(self.whole)
        self._require_room()
        with ThreadPoolExecutor(FILES) as pool:
            futures = [pool.submit(self._fetch, each, self.files[each]) for each in sorted(self.files)]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _require_room(self) -> None:
        here = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        needed, free = sum(facts.size for facts in self.files.values()) - here, shutil.disk_usage(self.folder).free
        if needed > free:
            place = self.folder.parent.parent
            raise NoRoomError(f"{needed / 1e6:,.1f} MB are still to come, and {place} has {free / 1e6:,.1f} MB left")

    def _part(self, each: str) -> Path:
        return self._parts / hashlib.sha256(each.encode()).hexdigest()

    def _fetch(self, each: str, facts: ObjectFacts) -> None:
        """Fetch one file."""
        path, part = self.whole / each, self._part(each)
        if path.is_file():
            return self._count(facts.size, came=False)
        algorithm, expected = self.sums.get(each, ("", ""))
        digest = hashlib.new(algorithm, usedforsecurity=False) if algorithm else None
        with os.fdopen(open_regular(part, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
            # The last piece may not have reached the disk before a machine lost its power.
            begin = max(0, (min(file.tell(), facts.size) - 1) // PIECE) * PIECE
            file.truncate(begin)
            file.seek(0)
            while digest and (content := file.read(PIECE)):
                digest.update(content)
            self._count(begin, came=False)
            places = range(begin, facts.size, PIECE)
            for content in read_ahead(lambda place: self._read(each, facts, place), places, FILES):
                file.write(content)
                file.flush()
                os.fdatasync(file.fileno())
                if digest:
                    digest.update(content)
                self._count(len(content), came=True)
        if digest and digest.hexdigest() != expected:
            part.unlink()
            if begin:  # what an earlier call left may be to blame
                self._count(-facts.size, came=False)
                return self._fetch(each, facts)
            raise CorruptError(self._explain(each, algorithm, digest.hexdigest(), expected))
        path.parent.mkdir(parents=True, exist_ok=True)
        part.rename(path)
        return None

    def _read(self, each: str, facts: ObjectFacts, begin: int) -> bytes:
        """A piece of a file, which is asked for again where the store does not answer."""
        object_name = "/".join(filter(None, (self.name, each)))
        for pause in (*self.pauses, None):
            if self._over.is_set():
                break
            try:
                return self.store.read_part(object_name, facts, begin, min(begin + PIECE, facts.size))
            except UnreachableError:
                if pause is None:
                    raise
                self._over.wait(pause)
        raise UnreachableError("it was given up")  # nobody sees this: another file failed first

    def _count(self, size: int, *, came: bool) -> None:
        with self._lock:
            self.came += size if came else 0
            self.note(size)

    @staticmethod
    def _explain(each: str, algorithm: str, found: str, expected: str) -> str:
        named = f"{each or 'the file'}: its {algorithm} is {found}, and {expected} was expected"
        if algorithm == "sha256":
            return (
                f"{named} by the list of checksums beside it. Correct the list or the file in the store, and try again"
            )
        return (
            f"{named} by its ETag. Either it was changed on its way: try again. Or the bucket encrypts with a key of KMS, whose "
            "ETags are no MD5: then add --ignore-etags"
        )
