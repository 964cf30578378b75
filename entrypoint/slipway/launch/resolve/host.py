"""What this host is, what its folders allow, and what a training process needs from it and images lack: a user name, a home,
caches.

torch asks for a home and for caches. For a user id without them it fails, or caches where nothing is kept.
"""

import errno
import os
import pwd
import re
import socket
import stat
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.resolve.runtimes import HOST, SLURM, detect_runtime, runtime_of
from slipway.launch.resolve.schedulers import granted_cores, needs_full_name
from slipway.protocol.errors import LaunchError
from slipway.protocol.printable import one_line
from slipway.protocol.variants import NAMES

CHECKPOINTS, DATA = Path("/checkpoints"), Path("/data")  # folders of the image, for results and for caches
USUAL_IMAGE = "slipway:dev"  # what images/variant.sh calls the default variant; the others add their name


class Host(NamedTuple):
    """This host's full name, a port that is free here, the variables that have to be made good.

    `runtime` is what runs us, for advice: host, docker, compose, kubernetes or slurm. `image` names Slipway's own image, None
    elsewhere. `mounts` maps mount points to types of file systems, `shm` is the size of /dev/shm in bytes, `noexec`
    says that no program may be started from the folder for temporary files, `scratch` is this user's own folder there. `affinity`
    counts the cores that this process may run on, `cores` those of the machine or, under Slurm, of the job on this node. `dmi`:
    what the firmware says of the machine, by the names of the kernel's files. `container`: see `own_container`.
    """

    fqdn: str
    free_port: int
    runtime: str
    mended: Mapping[str, str]
    image: str | None = None
    mounts: Mapping[Path, str] = MappingProxyType({})
    shm: int | None = None
    noexec: bool = False
    scratch: Path = Path("/tmp")  # noqa: S108  # a default for tests; `read_host` asks
    affinity: int = 1
    cores: int = 1
    dmi: Mapping[str, str] = MappingProxyType({})
    container: str = ""

    @property
    def usual_image(self) -> str:
        """What this image is called where `make image` built it: the variant is a word of the image's own name."""
        words = (self.image or "").split("-")
        return next((f"{USUAL_IMAGE}-{name}" for name in NAMES[1:] if name in words), USUAL_IMAGE)

    @property
    def shell(self) -> str:
        """The runtime whose shell we are started from: a checkout is started by hand, also in a container of another image."""
        return HOST.name if runtime_of(self.runtime).is_engine and self.image is None else self.runtime


def read_host(environ: Mapping[str, str]) -> Host:
    """Look at this host; names are resolved only for Kubernetes. Raises LaunchError if nothing can be written at all."""
    if detect_runtime(environ) not in (HOST.name, SLURM.name) and clone3_errno() == errno.EPERM:
        raise LaunchError(
            "No program can start a thread in this container: its engine answers the system call clone3 with EPERM, as Docker "
            "Engine before 20.10.10 does. Update the engine; until then add --security-opt seccomp=unconfined to docker run "
            "(compose: security_opt)."
        )
    fqdn = socket.getfqdn() if needs_full_name(environ) else socket.gethostname()
    image = environ.get("SLIPWAY_IMAGE") or None  # set by the image itself
    temporary = temporary_files()
    if temporary is None:  # torchrun needs one
        raise LaunchError(
            "No folder for temporary files can be written (TMPDIR, /tmp, /var/tmp). Set TMPDIR to a folder of yours; in a "
            f"container with a read-only root {advise('temporary files', detect_runtime(environ))}."
        )
    scratch, mounts = private_folder(temporary), read_mounts()
    home = place_home(environ, scratch, private_folder(DATA) if image else None, mounts)
    return Host(
        fqdn,
        free_port(0),
        detect_runtime(environ),
        {**name_user(environ), **home},
        image,
        mounts,
        size_of(Path("/dev/shm")),  # noqa: S108
        not may_execute(temporary),
        scratch,
        len(os.sched_getaffinity(0)),
        granted_cores(environ) or os.cpu_count() or 1,
        read_dmi(),
        own_container() if 1 in (os.getpid(), os.getppid()) else "",
    )


def clone3_errno() -> int:
    """The error of clone3 without arguments: EINVAL where the kernel has it, ENOSYS where glibc has to use clone in its place."""
    import ctypes  # milliseconds, which only a start in a container pays

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(435, None, 0)  # the same number on all architectures
    return ctypes.get_errno()


# product_uuid is readable by root alone; older EC2 instances (Xen) say the same in hypervisor_uuid.
DMI = {
    name: f"sys/class/dmi/id/{name}"
    for name in ("sys_vendor", "product_name", "product_uuid", "bios_version", "chassis_asset_tag")
} | {"hypervisor_uuid": "sys/hypervisor/uuid"}


def read_dmi(root: Path = Path("/")) -> dict[str, str]:
    """What the firmware says of this machine; what is missing, empty or unreadable is left out."""
    found = {}
    for name, file in DMI.items():
        with suppress(OSError):
            found[name] = one_line((root / file).read_text(errors="replace")).strip()
    return {name: text for name, text in found.items() if text}


def name_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a user whom /etc/passwd does not know: torch asks for the name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        name = f"uid-{os.getuid()}"
        return {} if environ.get("USER") else {"USER": name, "LOGNAME": name}
    return {}


def temporary_files() -> Path | None:
    """The folder for temporary files; None where no such folder can be written."""
    with suppress(FileNotFoundError):
        return Path(tempfile.gettempdir())
    return None


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


def room_of(folder: Path) -> int | None:
    """How many bytes this user can still write where a folder is, or will be; None where the file system does not say."""
    try:
        found = os.statvfs(existing(folder))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


EMPTY_DIR = "emptyDir"
HOST_TMPFS = "the host's tmpfs"


def read_mounts(mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[Path, str]:
    """Return the mount points with the types of their file systems (proc_pid_mountinfo(5)), none where unreadable.

    A folder that the kubelet made for a pod and deletes with it has the type EMPTY_DIR, whatever its file system. One within a
    tmpfs was bound from the host, and has the type HOST_TMPFS: of the container's own tmpfs the root is mounted.
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
        bound = HOST_TMPFS if after[0] == "tmpfs" and before[3] != "/" else after[0]
        mounts[Path(_unescaped(before[4]))] = EMPTY_DIR if temporary else bound
    return mounts


def mounted_from(point: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """What an engine mounted at `point`: the name of a volume, empty where it has none, or a folder of the host.

    The folder is an absolute path where the container shows it. mountinfo has the path within the file system only; that is the
    path on the host if Docker's own /etc/hosts is on the same file system below /var/lib/docker, where Docker keeps it by
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


def own_container(mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The id of the container that this launcher is the command of, so that the engine starts it again with the container; empty
    elsewhere. Engines keep the files that they mount there in a folder of the container's id (in a pod: of the pod's).
    """
    with suppress(OSError):
        fields = [line.split() for line in mountinfo.read_text(errors="surrogateescape").splitlines()]
        sources = [
            each[3] for each in fields if each[4:] and each[4] in ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
        ]
        return next((found[1] for source in sources if (found := re.search(r"/([0-9a-f]{64})/", source))), "")
    return ""


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def mount_point(folder: Path, mounts: Collection[Path]) -> Path | None:
    """The mount point of the file system that a folder is on."""
    return next((place for place in (folder, *folder.parents) if place in mounts), None)


CACHES = {"XDG_CACHE_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}

WORKSPACE = Path("/workspace")  # the image's working directory, which is its user's home


def place_home(
    environ: Mapping[str, str], scratch: Path, data: Path | None, mounts: Collection[Path] = ()
) -> dict[str, str]:
    """Return the variables for a home that cannot be written, and for caches where the usual places do not do.

    `data`, the image's own folder for caches, comes first, then `scratch`, which is among the temporary files, then
    the home. Code is cached where it may be executed, if there is such a place. In the image a home is the user's own
    where a volume is in it; `mounts` are the mount points.
    """
    home = Path(environ.get("HOME") or "/nonexistent")
    at_home = [home / ".cache/slipway"] if os.access(home, os.W_OK | os.X_OK) else []
    if at_home and not data and may_execute(scratch) and may_execute(home):
        return {}
    places = [*([data] if data and can_write(data) else []), scratch, *at_home]
    code = next((place for place in places if may_execute(place)), places[0])
    mended = place_caches(environ, places[0], code)
    if at_home and places[0] == scratch:
        mended.pop("XDG_CACHE_HOME", None)  # the usual place does for data
    # A real home may hold what the user's programs read, and only the caches go elsewhere.
    real = home.is_dir() and home != Path("/")
    if data:
        real = real and home != WORKSPACE and any(point.is_relative_to(home) for point in mounts)
    return mended if at_home or real else {"HOME": str(scratch), **mended}


def place_caches(environ: Mapping[str, str], data: Path, code: Path) -> dict[str, str]:
    """Return the variables of caches for data and for compiled code that the user has not set."""
    folders = {"XDG_CACHE_HOME": data, "TORCHINDUCTOR_CACHE_DIR": code, "TRITON_CACHE_DIR": code}
    return {name: f"{folders[name]}/{part}" for name, part in CACHES.items() if not environ.get(name)}


def make_folders(mended: Mapping[str, str]) -> None:
    """Make the folders that `mended` names, for this user alone. Raises OSError."""
    homes = [Path(mended["HOME"])] if "HOME" in mended else []
    for folder in [*homes, *(Path(mended[name]).parent for name in CACHES if name in mended)]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_folder(parent: Path) -> Path:
    """A folder of this user's own in a place that all users of a host write to: caches hold code that is executed."""
    folder = parent / f"slipway-{os.getuid()}"
    try:
        found = folder.lstat()
    except OSError:
        return folder  # it is made at the start
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return parent / f"{folder.name}-{os.urandom(8).hex()}"
