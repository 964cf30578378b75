"""Each process of a node gets its own device and cores: written by the launcher, read by whoever starts it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import make_devices, plan_for

from slipway.launch.resolve.devices import Gpu
from slipway.protocol import binding
from slipway.protocol.binding import on_cores, own_cores, own_device, read_cores, write_cores

SLICES = tuple(Gpu(0, f"MIG-{letter}", "NVIDIA H100 MIG 1g.10gb", (9, 0)) for letter in "abc")
MIXED = (*SLICES[:1], Gpu(1, "GPU-1", "NVIDIA H100", (9, 0)))
NEAR = tuple(
    gpu._replace(cores=cores) for gpu, cores in zip(make_devices(3).gpus, [(0, 1, 4), (), (2, 3)], strict=True)
)


@pytest.mark.parametrize(
    ("gpus", "environ", "devices", "cores"),
    [
        (SLICES, {}, "MIG-a,MIG-b,MIG-c", None),
        (SLICES[:1], {}, "MIG-a", None),
        (SLICES, {"NPROC_PER_NODE": "2"}, "MIG-a,MIG-b", None),
        (SLICES[:2], {"NPROC_PER_NODE": "3", "SLIPWAY_OVERSUBSCRIBE": "1"}, "MIG-a,MIG-b,MIG-a", None),
        (MIXED, {}, "MIG-a,GPU-1", None),  # a process that could see the slice would see that alone
        (make_devices(3).gpus, {}, None, None),
        (NEAR, {}, None, "0-1,4::2-3"),
        (NEAR, {"SLIPWAY_CPU_BINDING": "none"}, None, None),
        (NEAR, {"NPROC_PER_NODE": "cpu"}, None, None),
    ],
)
def test_the_plan_says_which_device_and_cores_each_process_has(
    gpus: tuple[Gpu, ...], environ: dict[str, str], devices: str | None, cores: str | None
) -> None:
    env = plan_for(environ=environ, devices=make_devices()._replace(gpus=gpus)).env
    assert (env.get("SLIPWAY_LOCAL_DEVICES"), env.get("SLIPWAY_LOCAL_CORES")) == (devices, cores)


def test_each_process_reads_its_own() -> None:
    environ = {"SLIPWAY_LOCAL_DEVICES": "MIG-a,MIG-b", "SLIPWAY_LOCAL_CORES": "0-2,8:"}
    assert [own_device(environ, rank) for rank in (0, 1)] == [{"CUDA_VISIBLE_DEVICES": f"MIG-{name}"} for name in "ab"]
    assert [own_cores(environ, rank) for rank in (0, 1)] == [{0, 1, 2, 8}, set()]
    assert (own_device({}, 5), own_cores({}, 5)) == ({}, set())


@pytest.mark.parametrize(
    ("cores", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((5, 0, 1, 2, 7, 8), "0-2,5,7-8"), (range(128), "0-127")],
)
def test_cores_are_written_as_the_kernel_does(cores: tuple[int, ...], text: str) -> None:
    assert write_cores(cores) == text
    assert read_cores(text) == set(cores)


class Kernel:
    """Answers get_mempolicy and set_mempolicy of x86_64, as libc's syscall does."""

    def __init__(self, mode: int = 0, forbids: tuple[int, ...] = ()) -> None:
        self.mode, self.forbids, self.set = mode, forbids, list[tuple[int, int]]()

    def syscall(self, number: int, first: Any, mask: Any, size: int, *_: Any) -> int:
        if number in self.forbids:
            return -1
        if number == 239:
            first._obj.value = self.mode
        else:
            self.mode = first
            self.set.append((first, int.from_bytes(mask or b"", "little")))
        return 0


@pytest.mark.parametrize(
    ("node", "mode", "forbids", "calls"),
    [
        (1, 0, (), [(1, 2), (0, 0)]),
        (None, 0, (), []),  # one NUMA node alone
        (1, 3, (), []),  # numactl --interleave
        (1, 1, (), []),  # numactl --preferred
        (1, 0, (239,), []),  # as Docker's profile does
        (1, 0, (238,), []),
    ],
)
def test_memory_comes_from_the_node_of_the_cores_unless_somebody_chose_otherwise(
    node: int | None, mode: int, forbids: tuple[int, ...], calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(mode, forbids)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: kernel)
    monkeypatch.setattr(binding.os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr(binding, "near_memory", lambda cores: node)
    with on_cores(os.sched_getaffinity(0)):
        assert kernel.set == calls[:1]
    assert kernel.set == calls
    assert kernel.mode == mode


def test_a_processor_whose_calls_are_unknown_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: kernel)
    monkeypatch.setattr(binding.os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    monkeypatch.setattr(binding, "near_memory", lambda cores: 0)
    assert not binding.move_to(os.sched_getaffinity(0))


def test_a_child_runs_on_the_cores_it_was_started_on_and_the_launcher_on_all() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    show = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    for asked, found in (({last}, {last}), ({last, 4095}, {last}), ({4095}, before), (set(), before)):
        with on_cores(asked):
            child = subprocess.run(show, capture_output=True, text=True, check=True)
        assert {int(core) for core in child.stdout.split()} == found
        assert os.sched_getaffinity(0) == before
