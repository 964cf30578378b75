"""What a cgroup says, wherever it is mounted: above the process, at it or below it, v1 and v2, in a namespace of its own or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from stand_ins import write_files

from slipway.check.machine import look_at_limits
from slipway.protocol.cgroups import cgroup_folders, count_cpus, count_ooms, read_memory

GB = 1 << 30
MEMINFO = f"MemTotal: {64 * GB >> 10} kB\nMemAvailable: {50 * GB >> 10} kB\n"
US = str(os.getpid())
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


def v1(top: str, controllers: str = "memory", point: str = "/sys/fs/cgroup/memory") -> str:
    """A line of mountinfo."""
    return f"35 31 0:32 {top} {point} rw,relatime shared:9 - cgroup cgroup rw,{controllers}\n"


def v2(top: str, point: str = "/sys/fs/cgroup") -> str:
    """The same for v2."""
    return f"30 24 0:27 {top} {point} ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"


def limit_v1(folder: str, gigabytes: int) -> dict[str, str]:
    """The files of a cgroup with a limit."""
    return {f"{folder}/memory.limit_in_bytes": str(gigabytes * GB), f"{folder}/memory.usage_in_bytes": "0"}


def limit_v2(folder: str, gigabytes: int) -> dict[str, str]:
    """The same for v2."""
    return {f"{folder}/memory.max": str(gigabytes * GB), f"{folder}/memory.current": "0"}


def kills_v1(folder: str, count: int) -> dict[str, str]:
    """The file with the count of a cgroup alone."""
    return {f"{folder}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"}


def kills_v2(folder: str, count: int) -> dict[str, str]:
    """The file with the count of a cgroup and those below it."""
    return {f"{folder}/memory.events": f"low 0\noom {count + 1}\noom_kill {count}\n"}


class Case(NamedTuple):
    """What the kernel says, and what is to be read of it: the limit in GB, and the kills."""

    mountinfo: str
    cgroup: str
    tree: dict[str, str]
    limit: int | None = None
    kills: int = 0


STEP = {**limit_v1(V1, 8), **kills_v1(V1, 0)}  # Slurm's: the step's limit, and the task below
ENROOT = Case(v1("/.."), "4:memory:/\n", {**STEP, **kills_v1(f"{V1}/task_0", 1)}, 8, 1)
TASKS = {**STEP, **kills_v1(f"{V1}/task_0", 1), **kills_v1(f"{V1}/task_1", 2)}
CASES = {
    "v1: enroot mounts the step above the task": ENROOT,
    "v1: with a limit of the task's own": ENROOT._replace(tree=ENROOT.tree | limit_v1(f"{V1}/task_0", 4), limit=4),
    "v1: of two tasks, the one that lists us": Case(
        v1("/.."), "4:memory:/\n", TASKS | {f"{V1}/task_1/cgroup.procs": f"1\n{US}\n"}, 8, 2
    ),
    "v1: of two tasks, nobody says which": Case(v1("/.."), "4:memory:/\n", TASKS, 8, 3),
    "v1: the job above the step above the task": Case(
        v1("/../.."), "4:memory:/\n",
        {**limit_v1(V1, 8), **limit_v1(f"{V1}/step_0", 6), **kills_v1(f"{V1}/step_0/task_0", 1)}, 6, 1,
    ),
    "v1: we have moved below the root of the namespace": Case(
        v1("/.."), "4:memory:/mine\n", {**STEP, **limit_v1(f"{V1}/task_0/mine", 2), **kills_v1(f"{V1}/task_0/mine", 3)}, 2, 3
    ),
    "v1: on the host": Case(
        v1("/"), "4:memory:/slurm/job_1\n",
        {**limit_v1(f"{V1}/slurm/job_1", 8), **kills_v1(f"{V1}/slurm/job_1", 1), **kills_v1(f"{V1}/slurm/job_2", 5)}, 8, 1,
    ),
    "v1: a container in the host's namespace": Case(v1("/docker/0a1b"), "4:memory:/docker/0a1b\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}, 8, 2),
    "v1: and a cgroup of its own in there": Case(
        v1("/docker/0a1b"), "4:memory:/docker/0a1b/init\n", {**limit_v1(V1, 8), **kills_v1(f"{V1}/init", 2)}, 8, 2
    ),
    "v1: a container in a namespace of its own": Case(v1("/"), "4:memory:/\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}, 8, 2),
    "v1: in the root of all, whose containers are others'": Case(
        v1("/"), "4:memory:/\n", {**kills_v1(V1, 1), **kills_v1(f"{V1}/docker/0a1b", 5), f"{V1}/release_agent": ""}, None, 1
    ),
    "v1: the limit is above what is mounted": Case(
        v1("/"), "4:memory:/\n", {**limit_v1(V1, 1 << 30), f"{V1}/memory.stat": f"cache 0\nhierarchical_memory_limit {8 * GB}\n"}, 8
    ),
    "v1: what is mounted is below us": Case(v1("/docker/0a1b"), "4:memory:/\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}),
    "v1: what is mounted is beside us": Case(v1("/docker/0a1b"), "4:memory:/docker/0a\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}),
    "v1: what is mounted is beside the namespace": Case(v1("/../task_1"), "4:memory:/\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}),
    "v1: we are above the namespace": Case(v1("/"), "4:memory:/..\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}),
    "v1: mounted twice, and once below us": Case(
        v1("/a/b", point="/mnt/b") + v1("/"), "4:memory:/a\n",
        {**limit_v1("mnt/b", 2), **limit_v1(f"{V1}/a", 8), **kills_v1("mnt/b", 7), **kills_v1(f"{V1}/a", 1)}, 8, 1,
    ),
    "v1: at another place, with a space in its name": Case(
        v1("/", "cpu,memory", r"/cg\040roups/both"), "4:cpu,memory:/a\n", {**limit_v1("cg roups/both/a", 8), **kills_v1("cg roups/both/a", 1)}, 8, 1
    ),
    "v1 beside v2": Case(
        v1("/") + v2("/", "/sys/fs/cgroup/unified"), "4:memory:/a\n0::/a\n",
        {**limit_v1(f"{V1}/a", 8), **kills_v1(f"{V1}/a", 1), "sys/fs/cgroup/unified/a/cgroup.procs": ""}, 8, 1,
    ),
    "v2: on the host": Case(
        v2("/"), "0::/system.slice/job\n", {**limit_v2(f"{V2}/system.slice", 8), **kills_v2(f"{V2}/system.slice/job", 1)}, 8, 1
    ),
    "v2: a container in the host's namespace": Case(v2("/docker/0a1b"), "0::/docker/0a1b\n", {**limit_v2(V2, 8), **kills_v2(V2, 2)}, 8, 2),
    "v2: a container in a namespace of its own": Case(v2("/"), "0::/\n", {**limit_v2(V2, 8), **kills_v2(V2, 2)}, 8, 2),
    "v2: mounted above the namespace": Case(
        v2("/.."), "0::/\n", {**limit_v2(V2, 8), **kills_v2(V2, 5), **limit_v2(f"{V2}/task_0", 4), **kills_v2(f"{V2}/task_0", 1)}, 4, 1
    ),
    "v2: a cgroup without the controller": Case(v2("/"), "0::/a/b\n", {**limit_v2(f"{V2}/a", 8), **kills_v2(f"{V2}/a", 1), f"{V2}/a/b/cgroup.procs": ""}, 8, 1),
    "v2: what is mounted is below us": Case(v2("/docker/0a1b"), "0::/\n", {**limit_v2(V2, 8), **kills_v2(V2, 2)}),
    "v2: we are above the namespace": Case(v2("/"), "0::/../..\n", {**limit_v2(V2, 8), **kills_v2(V2, 2)}),
    "v2: a name that is no text": Case(v2("/"), "0::/a\udcff\n", {**limit_v2(f"{V2}/a\udcff", 8), **kills_v2(f"{V2}/a\udcff", 2)}, 8, 2),
    "mountinfo says nothing": Case("", "4:memory:/docker/0a1b\n", {**limit_v1(V1, 8), **kills_v1(V1, 2)}, 8, 2),
}  # fmt: skip


def write_case(root: Path, case: Case) -> Path:
    """The files of a case, names as the bytes they are."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_bytes(os.fsencode(case.cgroup))
    return write_files(root, {"proc/meminfo": MEMINFO, "proc/self/mountinfo": case.mountinfo, **case.tree})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_memory_and_its_kills_are_those_of_our_own_cgroup(tmp_path: Path, case: Case) -> None:
    root = write_case(tmp_path, case)
    limit = read_memory(root).limit
    assert (limit and limit // GB, count_ooms(root)) == (case.limit, case.kills)


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "quota"),
    [
        (v1("/..", "cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"), "3:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu,cpuacct/task_0/cpu.cfs_"),
        (v1("/a", "cpu", "/sys/fs/cgroup/cpu"), "3:cpu:/a/b\n", "sys/fs/cgroup/cpu/cpu.cfs_"),
        (v2("/.."), "0::/\n", f"{V2}/task_0/cpu."),
        (v2("/a"), "0::/a/b\n", f"{V2}/cpu."),
    ],
)  # fmt: skip
def test_a_quota_of_cpus_is_that_of_our_own_cgroup(tmp_path: Path, mountinfo: str, cgroup: str, quota: str) -> None:
    files = {f"{quota}quota_us": "50000", f"{quota}period_us": "100000"}
    tree = files if "cfs" in quota else {f"{quota}max": "50000 100000"}
    assert count_cpus(write_case(tmp_path, Case(mountinfo, cgroup, tree))) == 0.5


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "warned"),
    [
        (v1("/..", "pids", "/sys/fs/cgroup/pids"), "8:pids:/\n", True),
        (v1("/a", "pids", "/sys/fs/cgroup/pids"), "8:pids:/a\n", False),
        (v2("/..", "/sys/fs/cgroup/pids"), "0::/\n", True),
        (v2("/task_0", "/sys/fs/cgroup/pids"), "0::/\n", False),
    ],
)
def test_few_processes_are_those_of_our_own_cgroup(tmp_path: Path, mountinfo: str, cgroup: str, warned: bool) -> None:
    tree = {"sys/fs/cgroup/pids/task_0/pids.max": "100", "sys/fs/cgroup/pids/task_0/pids.current": "90"}
    rows = look_at_limits(root=write_case(tmp_path, Case(mountinfo, cgroup, tree)))
    assert any(row.what == "processes" for row in rows) == warned


def test_a_cgroup_that_goes_while_its_kills_are_counted_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_case(
        tmp_path,
        Case(v1("/"), "4:memory:/\n", {**kills_v1(V1, 1), **kills_v1(f"{V1}/gone", 2), **kills_v1(f"{V1}/kept", 4)}),
    )
    scandir: Callable[..., object] = os.scandir

    def gone(path: object = ".") -> object:
        if str(path).endswith("/gone"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert count_ooms(root) == 5


def test_the_folders_are_listed_from_our_own_up_to_the_top_of_the_mount(tmp_path: Path) -> None:
    root = write_case(tmp_path, Case(v2("/.."), "0::/a\n", limit_v2(f"{V2}/task_0/a", 1)))
    top = root / V2
    assert cgroup_folders(root, "memory") == [top / "task_0/a", top / "task_0", top]
