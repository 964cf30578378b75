"""How much of this machine this process may use, and where the kernel keeps what its cgroups say. Reads /proc and /sys."""

import os
import re
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
    """Return this process's cgroup folders, from its own up to the top of what is mounted, for v2 and for a v1 controller.

    Empty where what is mounted is below or beside the cgroup of this process: its limits and counts are those of others.
    """
    folders: list[Path] = []
    for line in read_kernel_file(root / "proc/self/cgroup").splitlines():
        number, controllers, own = line.split(":", 2)
        if number == "0" and not controllers:
            mounts, usual = _find_mounts(root, "cgroup2"), root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mounts, usual = _find_mounts(root, "cgroup", controller), root / "sys/fs/cgroup" / controller
        else:
            continue
        if not mounts:  # a kernel, or an emulation of one, whose mountinfo does not say
            mounts, own = {usual: "/"}, "/".join(("", *_split(own)[1]))
        most = max([_folders_in(point, top, own) for point, top in mounts.items()], key=len)
        folders += most
    return folders


def _find_mounts(root: Path, kind: str, controller: str = "") -> dict[Path, str]:
    """Where a hierarchy is mounted, and from which of its cgroups on (proc_pid_mountinfo(5)).

    Of several mounts in one place the last one is to be seen. In v1 its controllers are the options of the file system.
    """
    mounts = {}
    for line in read_kernel_file(root / "proc/self/mountinfo").splitlines():
        mount, _, system = (part.split() for part in line.partition(" - "))
        if len(mount) > 4 and system[:1] == [kind] and (not controller or controller in system[-1].split(",")):
            top, point = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in mount[3:5])
            mounts[root / point.lstrip("/")] = top
    return mounts


def _folders_in(point: Path, top: str, own: str) -> list[Path]:
    """The folders of our cgroup and those above it, where the cgroup `top` is mounted at `point`.

    Both cgroups are paths from the root of our cgroup namespace, and lead up from there by `..` (cgroup_namespaces(7)). A mount
    from further up does not say what this root is called in it: it is the only folder there, or the one that lists this process.
    """
    (up, names), (top_up, top_names) = _split(own), _split(top)
    folder = point
    if up == top_up and names[: len(top_names)] == top_names:
        folder = point.joinpath(*names[len(top_names) :])
    elif up < top_up and not top_names:
        found = [path.joinpath(*names) for path in point.glob("/".join("*" * (top_up - up))) if path.is_dir()]
        ours = [path for path in found if str(os.getpid()) in read_kernel_file(path / "cgroup.procs").split()]
        folder = (ours or (found if len(found) == 1 else [point]))[0]
    else:
        return []
    return [path for path in (folder, *folder.parents) if path.is_relative_to(point) and path.is_dir()]


def _split(path: str) -> tuple[int, list[str]]:
    """How many times a path leads up, and the names after that."""
    parts = path.split("/")
    return parts.count(".."), [part for part in parts if part not in ("", "..")]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_kernel_file(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_kernel_file(folder / "cpu.cfs_quota_us"), read_kernel_file(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def read_kernel_file(file: Path) -> str:
    """Return what a file of the kernel's says; empty where it is not there, or not ours to read."""
    try:
        return file.read_text(errors="surrogateescape").strip()  # names of cgroups are bytes
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
            above = int(rows.get("hierarchical_memory_limit", most))  # v1's, of folders that are not mounted, too
            return min(most, above), used - int(rows.get(cache, 0))
    return None


def read_number(file: Path) -> int | None:
    """Return the number that a file of the kernel's holds; None where there is none."""
    text = read_kernel_file(file)
    return int(text) if text.isdigit() else None


def count_ooms(root: Path = Path("/")) -> int:
    """Return how many processes of this cgroup and those below it the kernel killed for lack of memory so far (v2 and v1).

    v1 counts a kill only in the cgroup that the killed process was in. Never raises: 0 where the kernel's files cannot be read,
    or went away.
    """
    with suppress(OSError):
        for folder in cgroup_folders(root, "memory"):
            if (count := _read_kills(folder / "memory.events")) is not None:
                return count
            if (count := _read_kills(folder / "memory.oom_control")) is not None:
                others = (folder / "release_agent").exists()  # the root of all: what is below is not ours
                below = [] if others else [Path(path) for path, _, _ in os.walk(folder)][1:]
                return count + sum(_read_kills(path / "memory.oom_control") or 0 for path in below)
    return 0


def _read_kills(file: Path) -> int | None:
    """The number after `oom_kill` in one of the kernel's files; None if there is none."""
    rows = (line.partition(" ") for line in read_kernel_file(file).splitlines())
    return next((int(count) for key, _, count in rows if key == "oom_kill" and count.isdigit()), None)
