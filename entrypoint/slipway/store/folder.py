"""A folder as a store, for another disk or a network file system. It needs no locks: flock does nothing on some of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipway.protocol.durable import replace_file, sync_folder
from slipway.protocol.files import LARGEST, LINK, NO_FILE, NOT_REGULAR, held_below, open_regular, read_regular
from slipway.store.objects import MissingObjectError, ObjectFacts, StoreRefusedError, UnreachableError

REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, *NO_FILE})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
DEEPEST = 64  # levels of folders that are listed; a run has seven, and each further one costs a frame of Python's stack


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Turn an OSError into the StoreError that says the same."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingObjectError(f"{error.filename} is missing") from None
    except OSError as error:
        kind = StoreRefusedError if error.errno in REFUSED else UnreachableError
        said = f"{os.fsdecode(error.filename or '')}: {error.strerror}"
        raise kind(said.replace(f": {LINK}", f" {LINK}").replace(f": {NOT_REGULAR}", f" {NOT_REGULAR}")) from None


class FolderStore:
    """Objects are regular files. One that was not finished has a name with a dot in front, and is listed too: it may be deleted.

    Whoever may write there may put links, pipes and devices in the place of folders and files. So each folder is opened through
    the one above it, and none of these is followed or read (`held_below`).
    """

    def __init__(self, root: str | Path) -> None:
        """`root` has to exist: one that does not may be a file system that is not mounted. Raises StoreRefusedError."""
        self._root, self.odd = Path(root), set[str]()
        self._require_root()

    def list_objects(self, prefix: str) -> dict[str, int]:
        """As ObjectStore says."""
        with as_store_errors():
            return {name: status.st_size for name, status in self._walk(prefix, self._pass_over)}

    def list_folders(self, prefix: str) -> list[str]:
        """As ObjectStore says."""
        found = []
        with (
            suppress(MissingObjectError),
            as_store_errors(),
            self._folder(prefix) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                elif entry.is_dir():
                    self._pass_over(self._root / prefix / entry.name, LINK)
        return sorted(found)

    def read(self, name: str, most: int = LARGEST) -> bytes:
        """As ObjectStore says."""
        with as_store_errors():
            try:
                with self._held(name) as path:
                    return read_regular(path, most)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                self._pass_over(error.filename, error.strerror or "")
                raise MissingObjectError(f"{error.filename} {error.strerror}") from None

    def find(self, name: str) -> dict[str, ObjectFacts]:
        """As ObjectStore says, for data that somebody copied there: a link is the file that it leads to, if both have one owner.

        Raises StoreRefusedError for other links, and for what is neither a file nor a folder.
        """
        with as_store_errors():
            if name:
                with suppress(FileNotFoundError), self._held(name) as path:
                    if not stat.S_ISDIR(path.lstat().st_mode):
                        return {name: self._look(name)}
            found = self._walk(name, _refuse, links=True)
            return {each: self._look(each) if stat.S_ISLNK(at.st_mode) else _facts(at) for each, at in found}

    def written(self, name: str) -> float:
        """As ObjectStore says."""
        with as_store_errors(), self._held(name) as path:
            return path.lstat().st_mtime

    def read_part(self, name: str, facts: ObjectFacts, begin: int, end: int) -> bytes:
        """As ObjectStore says."""
        with as_store_errors(), self._held(name) as path, os.fdopen(_open_linked(path), "rb", buffering=0) as file:
            if _facts(os.fstat(file.fileno())) != facts:
                raise MissingObjectError(f"{self._root / name} has changed since it was listed")
            content = os.pread(file.fileno(), end - begin, begin)
        if len(content) != end - begin:
            raise UnreachableError(f"{self._root / name}: {len(content)} bytes came instead of {end - begin}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """As ObjectStore says."""
        with as_store_errors(), self._held(name, make=True) as path:
            replace_file(path, content)

    def create(self, name: str, content: bytes) -> bool:
        """As ObjectStore says. A link to a finished file is what NFS can do atomically; O_EXCL where there are no links."""
        with as_store_errors(), self._held(name, make=True) as path:
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
        for name in names:
            with suppress(MissingObjectError), as_store_errors(), self._held(name) as path:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                for above in Path(name).parents[:-1]:
                    with self._held(above.as_posix()) as path:
                        path.rmdir()

    def _require_root(self) -> None:
        with as_store_errors():
            if not self._root.is_dir():
                raise StoreRefusedError(
                    f"there is no folder {self._root}; create it where the disk is mounted (mkdir {self._root}), and mount it "
                    "into a container"
                )

    @contextmanager
    def _folder(self, name: str, *, make: bool = False) -> Iterator[Path]:
        """A folder of this name, which is held. `make`: it is created where it is missing. Raises OSError."""
        self._require_root()
        with held_below(self._root, Path(name).parts, make=make) as folder:
            yield folder

    @contextmanager
    def _held(self, name: str, *, make: bool = False) -> Iterator[Path]:
        """The path of an object in its folder, which is held."""
        above, _, last = name.rpartition("/")
        with self._folder(above, make=make) as folder:
            yield folder / last

    def _walk(
        self, prefix: str, odd: Callable[[Path, str], None], *, links: bool = False
    ) -> Iterator[tuple[str, os.stat_result]]:
        """The files below a prefix; with `links` also symbolic links. `odd` gets the path of what is skipped, and why."""

        def fail(error: OSError) -> None:
            if isinstance(error, PermissionError):
                odd(self._root / prefix / Path(error.filename).relative_to(top), "cannot be read")
            elif not isinstance(error, FileNotFoundError):  # deleted meanwhile
                raise error

        with suppress(FileNotFoundError), self._folder(prefix) as top:
            for folder, folders, names in os.walk(top, onerror=fail):
                below = Path(prefix, Path(folder).relative_to(top))
                if len(below.parts) > DEEPEST:
                    odd(self._root / below, "lies too deep")
                    folders.clear()
                for each in (*names, *folders):
                    # It may have been deleted or renamed meanwhile, as a file that was not finished is.
                    with suppress(FileNotFoundError):
                        status = Path(folder, each).lstat()
                        is_link = stat.S_ISLNK(status.st_mode)
                        if stat.S_ISREG(status.st_mode) or (is_link and links):
                            yield (below / each).as_posix(), status
                        elif not stat.S_ISDIR(status.st_mode):
                            odd(self._root / below / each, LINK if is_link else NOT_REGULAR)

    def _pass_over(self, path: Path | str, why: str) -> None:
        self.odd.add(f"{path} {why}, so it is skipped")

    def _look(self, name: str) -> ObjectFacts:
        with self._held(name) as path, os.fdopen(_open_linked(path), "rb") as file:
            return _facts(os.fstat(file.fileno()))


def _open_linked(path: Path) -> int:
    """A descriptor of a file, or of the one that a link leads to. OSError unless it is a regular one, and has the owner of the
    link: so nobody makes us read what is only ours.
    """
    if not path.is_symlink():
        return open_regular(path)
    link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        number = os.open(path.parent / os.readlink("", dir_fd=link), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.fstat(link).st_uid:
            os.close(number)
            raise OSError(errno.EPERM, "a link to what is not a file of the link's owner")
        return number
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(link)


def _refuse(path: Path, why: str) -> None:
    raise StoreRefusedError(f"{path} {why}")


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
