"""/dev/shm, memory, CPUs and the kernel's limits: readings of real and made-up trees, and what follows from them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from stand_ins import make_devices, write_files

from slipway.check.machine import (
    judge_cpus,
    judge_locked,
    judge_memory,
    judge_shm,
    look_at_limits,
    look_at_shm,
)
from slipway.protocol.cgroups import Memory, read_memory
from slipway.protocol.errors import UNHEALTHY

MB, GB = 1 << 20, 1 << 30
MEMINFO = (
    f"MemTotal:       {64 << 20} kB\nMemFree:        {2 << 20} kB\nMemAvailable:   {50 << 20} kB\nHugePages_Total: 0\n"
)


@pytest.mark.parametrize(
    ("size", "free", "level", "code"),
    [
        (8 * GB, 8 * GB, "ok", 0),
        (512 * MB, 500 * MB, "ok", 0),
        (64 * MB, 64 * MB, "warning", 0),
        (8 * GB, 15 * MB, "error", UNHEALTHY),
        (64 * MB, 2 * MB, "error", UNHEALTHY),
    ],
)
def test_small_shared_memory_is_a_warning_and_full_one_an_error(size: int, free: int, level: str, code: int) -> None:
    row = judge_shm(size, free, "docker")
    assert (row.level, row.code) == (level, code)
    assert ("--shm-size 1g" in row.advice) == (level != "ok")


def test_missing_shared_memory_is_an_error(tmp_path: Path) -> None:
    (row,) = look_at_shm("kubernetes", tmp_path / "absent")
    assert (row.level, row.code) == ("error", UNHEALTHY)
    assert "medium: Memory" in row.advice


V2 = {
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/memory.max": f"{8 * GB}\n",
    "sys/fs/cgroup/job/memory.current": f"{5 * GB}\n",
    "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {2 * GB}\n",
}
V1 = {
    "proc/self/cgroup": "9:memory:/job\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{8 * GB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{5 * GB}\n",
    "sys/fs/cgroup/memory/job/memory.stat": f"cache 5\ntotal_inactive_file {2 * GB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GB}\n",
}


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, Memory(64 * GB, 50 * GB)),
        (V2, Memory(64 * GB, 50 * GB, 8 * GB, 3 * GB)),
        (V1, Memory(64 * GB, 50 * GB, 8 * GB, 3 * GB)),
        (V2 | {"sys/fs/cgroup/job/memory.max": "max\n"}, Memory(64 * GB, 50 * GB)),
        (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, Memory(64 * GB, 50 * GB)),
    ],
    ids=["machine", "v2", "v1", "v2 without limit", "v1 without limit"],
)
def test_memory_is_the_machines_or_the_narrowest_cgroups(tmp_path: Path, files: dict[str, str], memory: Memory) -> None:
    assert read_memory(write_files(tmp_path, {"proc/meminfo": MEMINFO, **files})) == memory


@pytest.mark.parametrize(
    ("memory", "level"),
    [
        (Memory(64 * GB, 50 * GB), "ok"),
        (Memory(64 * GB, GB // 2), "warning"),
        (Memory(64 * GB, 50 * GB, 8 * GB, 3 * GB), "ok"),
        (Memory(64 * GB, 50 * GB, 8 * GB, 7 * GB + 1), "warning"),
    ],
)
def test_little_memory_is_a_warning(memory: Memory, level: str) -> None:
    assert judge_memory(memory).level == level


def test_fewer_cpus_than_gpus_are_a_warning() -> None:
    assert judge_cpus(make_devices(gpus=8, cpus=4.0), 4, 64).level == "warning"
    row = judge_cpus(make_devices(gpus=2, cpus=2.0), 2, 64)
    assert (row.level, row.found) == ("ok", "2 of 64 may be used (affinity: 2)")


def test_locked_memory_matters_only_with_infiniband() -> None:
    assert judge_locked(64 << 10, infiniband=False).level == "ok"
    assert judge_locked(resource.RLIM_INFINITY, infiniband=True).level == "ok"
    row = judge_locked(64 << 10, infiniband=True, runtime="docker")
    assert row.level == "warning"
    assert "memlock=-1" in row.advice


def test_few_processes_are_a_warning_and_otherwise_no_row(tmp_path: Path) -> None:
    def rows(most: str) -> list[str]:
        tree = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": most, "sys/fs/cgroup/pids.current": "40\n"}
        return [row.what for row in look_at_limits(root=write_files(tmp_path, tree)) if row.level == "warning"]

    assert "processes" in rows("100\n")
    assert "processes" not in rows("max\n")
    assert "processes" not in rows("4096\n")
