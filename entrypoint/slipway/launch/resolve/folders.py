"""Questions about a folder that a container answers in its own way: whose disk, may we write, may code run from it?"""

import os
import re
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def existing(path: Path) -> Path:
    """The path itself or the nearest folder above it that exists."""
    return next((place for place in (path, *path.parents) if os.access(place, os.F_OK)), Path("/"))


def can_write(folder: Path) -> bool:
    """Whether this user can write into a folder, or make it."""
    return os.access(existing(folder), os.W_OK | os.X_OK)


def owner_of(folder: Path) -> int:
    """The number of the user to whom a folder belongs."""
    return folder.stat().st_uid


def may_execute(folder: Path) -> bool:
    """Whether code in a folder may be started or loaded: a tmpfs of docker's is mounted noexec by default."""
    return not os.statvfs(existing(folder)).f_flag & os.ST_NOEXEC


def is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted read-only."""
    return bool(os.statvfs(existing(folder)).f_flag & os.ST_RDONLY)


def size_of(folder: Path) -> int | None:
    """The size in bytes of the file system that a folder is on; None where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def temporary_files() -> Path | None:
    """The folder for temporary files; None where no such folder can be written."""
    with suppress(FileNotFoundError):
        return Path(tempfile.gettempdir())
    return None


EMPTY_DIR = "emptyDir"


def read_mounts(mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[Path, str]:
    """Return the mount points with the types of their file systems (proc_pid_mountinfo(5)), none where unreadable.

    A folder that the kubelet made for a pod and deletes with it has the type EMPTY_DIR, whatever it lies on.
    """
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    mounts = {}
    for line in lines:
        before, after = (part.split() for part in line.partition(" - ")[::2])
        if len(before) < 5 or not after:  # of a kernel, or an emulation of one, that writes other lines
            continue
        temporary = "/volumes/kubernetes.io~empty-dir/" in before[3]  # the kubelet's own name for the folder
        mounts[Path(_unescaped(before[4]))] = EMPTY_DIR if temporary else after[0]
    return mounts


def mounted_from(point: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """What an engine mounted at `point`: the name of a volume, empty where it has none, or a folder of the host.

    The folder is an absolute path where the container shows it. mountinfo has the path within the file system only; that is the
    path on the host if Docker's own /etc/hosts lies on the same file system below /var/lib/docker, where Docker keeps it by
    default. Otherwise, as on Docker Desktop, only the name is known: ./NAME, and ./runs where nothing is mounted.
    """
    try:
        fields = [line.split() for line in mountinfo.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        fields = []
    mounted = {Path(_unescaped(each[4])): (each[2], _unescaped(each[3])) for each in fields if each[4:]}
    device, source = mounted.get(point, ("", "/"))
    if volume := re.search(r"/volumes/([^/]+)/_data$", source):  # Docker's and Podman's
        return "" if re.fullmatch(r"[0-9a-f]{64}", volume[1]) else volume[1]
    known_device, known = mounted.get(Path("/etc/hosts"), ("", ""))
    above, docker, _ = known.partition("/var/lib/docker/containers/")  # `above` is a subvolume of btrfs, or empty
    if docker and known_device == device and source.startswith(f"{above}/"):
        return source.removeprefix(above)
    return f"./{Path(source).name or 'runs'}"


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def mount_point(folder: Path, mounts: Collection[Path]) -> Path | None:
    """The mount point that a folder lies on."""
    return next((place for place in (folder, *folder.parents) if place in mounts), None)
