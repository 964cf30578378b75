"""What this host is, and what a training process needs from it and images lack: a user name, a home, caches."""

import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.caches import place_home, private_folder
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.resolve.folders import may_execute, read_mounts, size_of, temporary_files
from slipway.protocol.errors import LaunchError

CHECKPOINTS, DATA = Path("/checkpoints"), Path("/data")  # folders of the image, for results and for caches


@dataclass(frozen=True)
class Host:
    """This host's full name, a port that is free here, the variables that have to be made good.

    `runtime` is what runs us, for advice: host, docker, kubernetes or slurm. `image` names Slipway's own image, None
    elsewhere. `mounts` maps mount points to types of file systems, `shm` is the size of /dev/shm in bytes, `noexec`
    says that no program may be started from the folder for temporary files, `scratch` is this user's own folder there. `affinity`
    counts the cores that this process may run on, `cores` those of the machine or, under Slurm, of the job on this node.
    """

    fqdn: str
    free_port: int
    runtime: str
    mended: Mapping[str, str]
    image: str | None = None
    mounts: Mapping[Path, str] = field(default_factory=dict)
    shm: int | None = None
    noexec: bool = False
    scratch: Path = Path("/tmp")  # noqa: S108  # a default for tests; `read_host` asks
    affinity: int = 1
    cores: int = 1

    @property
    def shell(self) -> str:
        """The runtime from whose shell one starts us: a checkout is started by hand, also in a container of somebody else's."""
        return "host" if self.runtime == "docker" and self.image is None else self.runtime


def read_host(environ: Mapping[str, str]) -> Host:
    """Look at this host. Asks name resolution only where the full name matters (Kubernetes).

    Raises LaunchError where nothing can be written at all.
    """
    fqdn = socket.getfqdn() if environ.get("JOB_COMPLETION_INDEX") else socket.gethostname()
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
        int(allotted) if (allotted := environ.get("SLURM_CPUS_ON_NODE", "")).isdecimal() else os.cpu_count() or 1,
    )


def name_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a user whom /etc/passwd does not know: torch asks for the name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        name = f"uid-{os.getuid()}"
        return {} if environ.get("USER") else {"USER": name, "LOGNAME": name}
    return {}


def detect_runtime(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Where this launcher runs: `kubernetes`, `slurm`, `docker` or `host`."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    marks = (".dockerenv", "run/.containerenv")
    return "docker" if any((root / mark).exists() for mark in marks) else "host"
