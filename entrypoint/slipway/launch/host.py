"""What a training process needs from its host and images lack: a home, a user name, caches, for any user id."""

import os
import pwd
import socket
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
    return Host(
        fqdn,
        free_port(0),
        detect_runtime(environ),
        mend_environment(environ, os.access(home, os.W_OK | os.X_OK), _user_known(), os.getuid()),
    )


def mend_environment(environ: Mapping[str, str], home_writable: bool, user_known: bool, uid: int) -> dict[str, str]:
    """Return the variables to add: torch asks for a user name and caches below HOME, and fails without (FACTS)."""
    mended: dict[str, str] = {}
    if not user_known and not environ.get("USER"):
        mended |= {"USER": f"uid-{uid}", "LOGNAME": f"uid-{uid}"}
    if not home_writable:
        folder = f"{tempfile.gettempdir()}/slipway-{uid}"
        caches = {
            "HOME": folder,
            "XDG_CACHE_HOME": f"{folder}/cache",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        mended |= {name: value for name, value in caches.items() if name == "HOME" or not environ.get(name)}
    return mended


def detect_runtime(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Where this launcher runs: `kubernetes`, `slurm`, `docker` or `host`."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    marks = (".dockerenv", "run/.containerenv")
    return "docker" if any((root / mark).exists() for mark in marks) else "host"


def _user_known() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
