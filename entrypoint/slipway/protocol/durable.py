"""Files that are on the disk once their function returns."""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PIECE = 2**24  # bytes
# The answers of SMB, of Windows's drives under WSL and of some FUSE file systems to an fsync of a folder.
NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM})


class FileFacts(NamedTuple):
    """By which a file is known: its bytes, and their hash."""

    size: int
    sha256: str


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the file in an OSError: that of a write does not say where it failed."""
    try:
        yield
    except OSError as error:
        error.filename = str(path) if error.filename is None else error.filename
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file that is the old one or the new one, never half of it or none, and so is its name. Raises OSError."""
    write_whole(path, content)
    sync_folder(path.parent)


def write_whole(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """The same where nothing depends on which of them a machine that loses its power comes back with. Raises OSError.

    `durable`: it is one of the two even then; else it may be an empty one.
    """
    # A hidden file of the plain name may be the user's own, and another process may write the same file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)
        with named(path), temporary.open("xb") as file:  # a link that somebody put there is not followed
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def unfinished(folder: Path, name: str = "*") -> list[Path]:
    """What other processes left in a folder that were killed while they wrote a file of this name, or are writing just now."""
    return [path for path in folder.glob(f".{name}.*.new") if not path.match(f"*.{os.getpid()}.new")]


def remove_tree(path: Path) -> None:
    """Delete a folder and everything in it, of a link only the link. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def clear(path: Path) -> str:
    """Delete a folder that nobody needs any more, as far as that is possible now. Returns why something of it is left: on NFS and
    FUSE a file that a process has open keeps its folder, and a virus scanner or `chattr +i` a file.
    """
    try:
        remove_tree(path)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # what else can go gives its space back
        return (error.strerror or str(error)) if os.path.lexists(path) else ""
    return ""


def hidden(path: Path, what: str) -> Path:
    """A hidden name beside `path` that nothing has: something that cannot be deleted may have the plain one."""
    names = itertools.chain([what], (f"{what}-{number}" for number in itertools.count(2)))
    return next(
        name for name in (path.with_name(f".{path.name}.{each}") for each in names) if not os.path.lexists(name)
    )


def sync_tree(folder: Path) -> None:
    """Bring a folder and everything in it to the disk. Raises OSError."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Create a folder where there is none, durably. Raises OSError."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> bool:
    """Make the names in `folder` durable. Returns whether its file system can do that for folders. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise OSError(error.errno, error.strerror, str(folder)) from None
        return False
    finally:
        os.close(descriptor)
    return True


def write_file(
    path: Path, chunks: Iterable[bytes | memoryview], note: Callable[[int], None] = lambda size: None
) -> FileFacts:
    """Write and fsync a new file; the facts of what was meant, not of what is read back. `note` gets the size of each piece."""
    import hashlib  # it takes two milliseconds, which a launcher that writes no such file saves

    digest = hashlib.sha256()
    size = 0
    path.unlink(missing_ok=True)
    with named(path), path.open("xb") as file:  # do not follow a link at this path
        for piece in pieces(chunks):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            note(len(piece))
        file.flush()
        os.fsync(file.fileno())
        # A reader must see what is on disk, and training data make better use of the page cache.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return FileFacts(size, digest.hexdigest())


def pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield the same bytes in pieces of at most PIECE."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]
