"""A folder as a store, for another disk or a network file system. It needs no locks: flock does nothing on some of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipway.protocol.durable import replace_file, sync_folder
from slipway.store.objects import MissingObjectError, ObjectFacts, StoreRefusedError, UnreachableError

REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Turn an OSError into the StoreError that says the same."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingObjectError(f"{error.filename} is missing") from None
    except OSError as error:
        kind = StoreRefusedError if error.errno in REFUSED else UnreachableError
        raise kind(f"{os.fsdecode(error.filename or '')}: {error.strerror}") from None


class FolderStore:
    """Objects are files. One that was not finished has a name with a dot in front, and is listed too: it may be deleted."""

    def __init__(self, root: str | Path) -> None:
        """`root` has to exist: one that does not may be a file system that is not mounted. Raises StoreRefusedError."""
        self._root = Path(root)
        self._require_root()

    def list_objects(self, prefix: str) -> dict[str, int]:
        """As ObjectStore says."""
        self._require_root()
        found: dict[str, int] = {}
        for folder, _, names in os.walk(self._root / prefix):
            for name in names:
                path = Path(folder, name)
                with suppress(MissingObjectError), as_store_errors():  # deleted meanwhile
                    found[path.relative_to(self._root).as_posix()] = path.lstat().st_size
        return found

    def list_folders(self, prefix: str) -> list[str]:
        """As ObjectStore says."""
        self._require_root()
        with suppress(MissingObjectError), as_store_errors():
            return sorted(path.name for path in (self._root / prefix).iterdir() if path.is_dir())
        return []

    def read(self, name: str) -> bytes:
        """As ObjectStore says."""
        with as_store_errors():
            return (self._root / name).read_bytes()

    def find(self, name: str) -> dict[str, ObjectFacts]:
        """As ObjectStore says. Raises StoreRefusedError for what is neither a file nor a folder, and for links to folders."""
        self._require_root()
        found: dict[str, ObjectFacts] = {}
        with as_store_errors():
            path = self._root / name
            if path.is_file():
                return {name: _facts(path.stat())}
            for folder, folders, names in os.walk(path, onerror=_raise):
                for each in (*names, *folders):
                    inner = Path(folder, each)
                    try:
                        status = inner.stat()
                    except FileNotFoundError:
                        if inner.is_symlink():
                            raise
                        continue  # deleted or renamed meanwhile, as a file that was not finished is
                    if stat.S_ISREG(status.st_mode):
                        found[inner.relative_to(self._root).as_posix()] = _facts(status)
                    elif each in names or inner.is_symlink():
                        raise StoreRefusedError(f"{inner} is neither a file nor a folder")
        return found

    def written(self, name: str) -> float:
        """As ObjectStore says."""
        with as_store_errors():
            return (self._root / name).stat().st_mtime

    def read_part(self, name: str, facts: ObjectFacts, begin: int, end: int) -> bytes:
        """As ObjectStore says."""
        with as_store_errors(), (self._root / name).open("rb", buffering=0) as file:
            if _facts(os.fstat(file.fileno())) != facts:
                raise MissingObjectError(f"{self._root / name} has changed since it was listed")
            content = os.pread(file.fileno(), end - begin, begin)
        if len(content) != end - begin:
            raise UnreachableError(f"{self._root / name}: {len(content)} bytes came instead of {end - begin}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """As ObjectStore says."""
        with as_store_errors():
            replace_file(self._make_room(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """As ObjectStore says. A link to a finished file is what NFS can do atomically; O_EXCL where there are no links."""
        with as_store_errors():
            path = self._make_room(name)
            temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
            try:
                replace_file(temporary, content)
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return temporary.stat().st_nlink == 2  # the answer to an earlier try of NFS's was lost
                except OSError as error:
                    if error.errno not in NO_LINKS:
                        raise
                    return _create_exclusively(path, content)
            finally:
                temporary.unlink(missing_ok=True)
                sync_folder(path.parent)
            return True

    def delete(self, names: Collection[str]) -> None:
        """As ObjectStore says, and folders that are empty then."""
        with as_store_errors():
            for name in names:
                path = self._root / name
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    for above in path.relative_to(self._root).parents[:-1]:
                        (self._root / above).rmdir()

    def _require_root(self) -> None:
        with as_store_errors():
            if not self._root.is_dir():
                raise StoreRefusedError(
                    f"there is no folder {self._root}; create it where the disk is mounted: mkdir {self._root}"
                )

    def _make_room(self, name: str) -> Path:
        self._require_root()
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _create_exclusively(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _facts(status: os.stat_result) -> ObjectFacts:
    return ObjectFacts(status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}")


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
