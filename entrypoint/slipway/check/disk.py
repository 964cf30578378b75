"""Disks that a job writes to: is there room, does what is written come back, does flock lock? Leaves nothing behind."""

import contextlib
import errno
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipway.check.finding import misconfigured, ok, sick, skipped, warning, within
from slipway.check.machine import gibibytes
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.container_checks import FULL, fleeting_results, require_writable
from slipway.launch.resolve.host import Host, existing, temporary_files
from slipway.launch.run_directory.run import require_renames
from slipway.protocol.durable import replace_file
from slipway.protocol.errors import LaunchError

LOW = {"run directory": 5 << 30}  # bytes from which on a disk has room, and for all others
LOW_ELSEWHERE = 1 << 30
FEW_INODES = 1000
WRITTEN = 1 << 20  # bytes of the probe
SECONDS = 20.0  # a file server that takes longer for WRITTEN bytes hangs
TEMPORARY = "temporary files"  # a row, also where there is no folder for them
LOCKED = 75  # the code that we have flock(1) end with if somebody else holds the file
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT})  # /proc says ENOENT


@dataclass(frozen=True)
class Room:
    """What a file system has left, in bytes and in files; `inodes` is None where it does not count them."""

    free: int
    inodes: int | None


def look_at_disks(host: Host, environ: Mapping[str, str], results: Path) -> Iterator[Finding]:
    """The rows of all disks: that of `results`, of the caches and of temporary files.

    Where there is no folder for temporary files (read_host tells that), those that would lie in it are skipped.
    """
    wanted = places(host, environ, results)
    homeless = () if temporary_files() else lie_there(host, wanted)
    for what, folder in wanted.items():
        if what in homeless:
            yield skipped(what, f"not checked because of the error in {TEMPORARY}")
            continue
        try:
            yield from within(SECONDS, partial(_look, host, what, folder))
        except TimeoutError as error:
            yield sick(what, f"{folder}: {error}", "look at the file server and its mount on this node")


def places(host: Host, environ: Mapping[str, str], results: Path) -> dict[str, Path]:
    """The folders to look at, by what they are for; one that holds several things is named after the first."""
    known = {**environ, **host.mended}
    home = Path(known.get("HOME") or "/")
    wanted = {
        "run directory": results,
        "cache": Path(known.get("XDG_CACHE_HOME") or home / ".cache"),
        "compiled code": Path(known.get("TRITON_CACHE_DIR") or home / ".triton"),
    }
    if temporary := temporary_files():
        wanted[TEMPORARY] = temporary
    found: dict[str, Path] = {}
    for what, folder in wanted.items():
        if existing(folder) not in map(existing, found.values()):
            found[what] = folder
    return found


def lie_there(host: Host, wanted: Mapping[str, Path]) -> set[str]:
    """Which of the folders the launcher would make among the temporary files, if there were any."""
    caches = set(wanted) & {"cache", "compiled code"}  # nobody has placed them without read_host
    return caches | {what for what, folder in wanted.items() if folder.is_relative_to(host.scratch)}


def _look(host: Host, what: str, folder: Path) -> list[Finding]:
    try:
        if what == "run directory":
            require_writable(host, folder)  # knows which flag of which runtime helps
        with tempfile.TemporaryDirectory(prefix=".slipway-check-", dir=existing(folder)) as name:
            if what == "run directory":
                require_renames(Path(name))
            row = judge_room(what, folder, read_room(folder), time_durable_write(Path(name)))
            kept = judge_stay(host, folder) if what == "run directory" else ()
            return [row, *kept, *judge_flock(what, folder, flock_holds(Path(name)))]
    except LaunchError as error:
        return [misconfigured(what, str(error))]
    except OSError as error:
        return [judge_error(what, folder, error)]


def read_room(folder: Path) -> Room:
    """Ask the file system of a folder, or of the nearest one above it. Raises OSError."""
    found = os.statvfs(existing(folder))
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def time_durable_write(folder: Path) -> float:
    """Write, fsync, rename, fsync the folder and read back; the seconds that took. Raises OSError."""
    begin, content, file = time.monotonic(), os.urandom(WRITTEN), folder / "written"
    replace_file(file, content)
    if file.read_bytes() != content:
        raise OSError(errno.EIO, "the data read back are not what was written")
    return time.monotonic() - begin


def flock_holds(folder: Path) -> bool | None:
    """Whether a second process is refused a lock that this one holds; None where that cannot be tried."""
    with (folder / "lock").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks says so
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = ["flock", "--nonblock", "--conflict-exit-code", str(LOCKED), str(folder / "lock"), "true"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == LOCKED
        except OSError:  # this machine has no flock(1)
            return None


def judge_room(what: str, folder: Path, room: Room, seconds: float) -> Finding:
    """Whether the disk has room, for one where writing went well and took so long."""
    found = f"{folder}: {gibibytes(room.free)} free"
    if room.free < FULL:
        return sick(what, f"{found}: almost full", "free some space")
    if room.inodes is not None and room.inodes < FEW_INODES:
        return sick(what, f"{folder}: room for {room.inodes} more files", "remove files: its inodes are used up")
    if room.free < LOW.get(what, LOW_ELSEWHERE):
        return warning(what, f"{found}, not much for snapshots and data", "free some space, or use another disk")
    return ok(what, f"{found}; written and read back in {seconds * 1e3:.0f} ms")


def judge_stay(host: Host, folder: Path) -> Iterator[Finding]:
    """A row only where the results end with the container."""
    if fleeting := fleeting_results(host, folder):
        yield warning("results", fleeting.removeprefix("warning: "))


def judge_flock(what: str, folder: Path, holds: bool | None) -> Iterator[Finding]:
    """A row only where flock does nothing."""
    if holds is False:
        found = f"{folder}: flock does nothing here; Slipway does not rely on it, but other programs may"
        yield warning(f"{what} locks", found, "do not let two jobs write to the same files")


def judge_error(what: str, folder: Path, error: OSError) -> Finding:
    """A disk that cannot be written: somebody's configuration, or a disk that is full or broken."""
    found = f"{folder} cannot be written: {error.strerror or error}"
    if error.errno == errno.EROFS:
        mend = "mount it read-write; where the kernel has made it read-only after errors, dmesg says so"
        return misconfigured(what, found, mend)
    if error.errno in FORBIDDEN:
        return misconfigured(what, found, f"let user {os.getuid()} write there, or choose another folder")
    return sick(what, found, "look at the disk (df -h, df -i, dmesg)")
