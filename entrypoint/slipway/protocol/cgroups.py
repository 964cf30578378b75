"""How much of this machine this process may use, and where the kernel keeps what its cgroups say. Reads /proc and /sys."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")


class Memory(NamedTuple):
    """Bytes of memory: of the machine, and of the narrowest cgroup (`limit` None: none is set)."""

    total: int
    available: int
    limit: int | None = None
    used: int = 0

    @property
    def left(self) -> int:
        """What may still be used."""
        return self.available if self.limit is None else min(self.available, self.limit - self.used)


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
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top) and folder.is_dir()]
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


def read_memory(root: Path = _ROOT) -> Memory:
    """The machine's memory (/proc/meminfo) and the cgroup's, v1 or v2. Raises OSError and KeyError without /proc."""
    rows = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    machine = {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
    limits = [found for folder in cgroup_folders(root, "memory") if (found := _limit(folder)) is not None]
    limit, used = min(limits, default=(machine["MemTotal"], 0), key=lambda pair: pair[0] - pair[1])
    bounded = limit < machine["MemTotal"]  # v1 says "none" with a number beyond any machine
    return Memory(machine["MemTotal"], machine["MemAvailable"], limit if bounded else None, used if bounded else 0)


def _limit(folder: Path) -> tuple[int, int] | None:
    """A cgroup's limit and what it uses of it, without the file cache that the kernel would give back."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = read_number(folder / limit), read_number(folder / usage)
        if most is not None and used is not None:
            rows = dict(line.split() for line in read_kernel_file(folder / "memory.stat").splitlines())
            return most, used - int(rows.get(cache, 0))
    return None


def read_number(file: Path) -> int | None:
    """Return the number that a file of the kernel's holds; None where there is none."""
    text = read_kernel_file(file)
    return int(text) if text.isdigit() else None


def count_ooms(root: Path = Path("/")) -> int:
    """Return how many processes of this cgroup the kernel killed for lack of memory so far (cgroup v2 and v1).

    Never raises: 0 where the kernel's files cannot be read, or went away.
    """
    with suppress(OSError):
        for folder in cgroup_folders(root, "memory"):
            for name in ("memory.events", "memory.oom_control"):
                for line in read_kernel_file(folder / name).splitlines():
                    key, _, count = line.partition(" ")
                    if key == "oom_kill" and count.isdigit():
                        return int(count)
    return 0
