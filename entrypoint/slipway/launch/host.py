"""What a training process needs from its host and images lack: a home, a user name, caches, for any user id."""

import os
import pwd
import secrets
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.launch.reach import free_port


@dataclass(frozen=True)
class Host:
    """This host's full name, a port that is free here, the variables that have to be made good.

    `runtime` is what runs us, for advice: host, docker, kubernetes or slurm.
    """

    fqdn: str
    free_port: int
    runtime: str
    mended: Mapping[str, str]


def read_host(environ: Mapping[str, str]) -> Host:
    """Look at this host. Asks name resolution only where the full name matters (Kubernetes)."""
    fqdn = socket.getfqdn() if environ.get("JOB_COMPLETION_INDEX") else socket.gethostname()
    home = Path(environ.get("HOME") or "/nonexistent")
    known = True
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        known = False
    mended = {} if known or environ.get("USER") else {"USER": f"uid-{os.getuid()}", "LOGNAME": f"uid-{os.getuid()}"}
    if not os.access(home, os.W_OK | os.X_OK):
        mended |= replace_home(
            environ, home.is_dir() and home != Path("/"), private_folder(Path(tempfile.gettempdir()))
        )
    return Host(fqdn, free_port(0), detect_runtime(environ), mended)


def replace_home(environ: Mapping[str, str], keep: bool, folder: Path) -> dict[str, str]:
    """Return the variables for a home that cannot be written: torch caches below it and fails without (FACTS).

    `keep`: it is a real home, which may hold what the user's programs read, and only the caches go elsewhere.
    """
    caches = {
        "XDG_CACHE_HOME": f"{folder}/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    wanted = {name: value for name, value in caches.items() if not environ.get(name)}
    return wanted if keep else {"HOME": str(folder), **wanted}


def private_folder(parent: Path) -> Path:
    """A folder of this user's own in a place that all users of a host write to: caches hold code that is executed."""
    folder = parent / f"slipway-{os.getuid()}"
    try:
        found = folder.lstat()
    except OSError:
        return folder  # whoever starts makes it
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return parent / f"{folder.name}-{secrets.token_hex(8)}"


def detect_runtime(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Where this launcher runs: `kubernetes`, `slurm`, `docker` or `host`."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    marks = (".dockerenv", "run/.containerenv")
    return "docker" if any((root / mark).exists() for mark in marks) else "host"
