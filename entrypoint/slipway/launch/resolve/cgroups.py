"""How much of this machine's CPU this process may use, and where the kernel keeps what its cgroups say. Reads /proc and /sys."""

import os
from pathlib import Path


def count_cpus(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use: its affinity, or a smaller cgroup v1 or v2 quota (1.5 is possible)."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for folder in cgroup_folders(root, "cpu"):
        limits += [limit for limit in (_quota_v2(folder), _quota_v1(folder)) if limit]
    return min(limits)


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroup folders, from its own up to the top, for v2 and for a v1 controller.

    Inside a container /proc/self/cgroup may name a path of the host that is not there; the mounted top is then ours.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        own = top / path.lstrip("/")
        # Not Path.is_dir, which raises ESTALE, as a container's squashfuse answers once its job is over.
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top) and os.path.isdir(folder)]  # noqa: PTH112
    return folders


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_kernel_file(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_kernel_file(folder / "cpu.cfs_quota_us"), read_kernel_file(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def read_kernel_file(file: Path) -> str:
    """Return what a file of the kernel's says; empty where it is not there, or not ours to read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
