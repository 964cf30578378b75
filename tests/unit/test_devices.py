"""GPUs as CUDA will count them, through a NVML that is made up; CPUs through made-up cgroup trees."""

import os
from pathlib import Path
from typing import Any

import pytest
from stand_ins import FakeNvml, NvmlError, make_card, write_files

from slipway.launch.resolve import devices
from slipway.launch.resolve.devices import cgroup_folders, count_cpus, read_devices

FOUR = [make_card(number) for number in range(4)]
SLICED = [
    make_card(0, slices=["MIG-aa", None, "MIG-ab"]),
    make_card(1),
    make_card(2, slices=()),
    make_card(3, slices=[]),
]


def visible(wanted: str | None, cards: list[Any]) -> list[str]:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    return [gpu.uuid for gpu in read_devices(environ, FakeNvml(*cards)).gpus]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (None, "0123"),
        ("0", "0"),
        ("0,1,2,3", "0123"),
        ("2,0", "20"),
        (" 1 , 3 ", "13"),
        ("GPU-1a1b", "1"),
        ("GPU-3", "3"),  # a beginning that is unique
        ("GPU-2a,GPU-0a", "20"),
        ("", ""),
        ("-1", ""),
        ("none", ""),
        ("NoDevFiles", ""),
        ("0,-1,1", "0"),  # the first entry that names nothing ends the list
        ("1,9,2", "1"),
        ("7", ""),
        ("0,x,1", "0"),
        ("0,,1", "0"),
        ("GPU-", ""),  # the beginning of several
        ("GPU-1,GPU-9,GPU-2", "1"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(wanted: str | None, numbers: str) -> None:
    assert visible(wanted, FOUR) == [f"GPU-{number}a{number}b" for number in numbers]


@pytest.mark.parametrize("wanted", ["0,0", "1,0,1", "GPU-1,GPU-1"])
def test_a_device_named_twice_leaves_none(wanted: str) -> None:
    """As CUDA does, and torch.cuda._parse_visible_devices after it: "Repeated id results in empty set"."""
    assert visible(wanted, FOUR) == []


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        (None, ["MIG-aa", "MIG-ab", "GPU-1a1b", "GPU-2a2b"]),
        ("MIG-ab", ["MIG-ab"]),
        ("MIG-ab,MIG-aa", ["MIG-ab", "MIG-aa"]),
        ("MIG-a", []),
        ("0", ["MIG-aa"]),
        ("1", ["GPU-1a1b"]),
    ],
)
def test_mig_slices_are_devices(wanted: str | None, uuids: list[str]) -> None:
    assert visible(wanted, SLICED) == uuids


def test_a_gpu_keeps_what_is_known_of_it() -> None:
    nvml = FakeNvml(make_card(0, capability=(7, 5)))
    found = read_devices({}, nvml)
    assert (found.gpus[0].index, found.gpus[0].name, found.gpus[0].capability) == (0, "NVIDIA H100", (7, 5))
    assert (found.driver, found.problem) == ("550.54.15", "")
    assert nvml.shut_down


@pytest.mark.parametrize("wanted", ["", "-1", "9"])
def test_why_there_is_no_gpu_is_told(wanted: str) -> None:
    found = read_devices({"CUDA_VISIBLE_DEVICES": wanted}, FakeNvml(*FOUR))
    assert found.gpus == ()
    assert found.reason == f"CUDA_VISIBLE_DEVICES={wanted!r} shows none"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (NvmlError(9, "Driver Not Loaded"), False),
        (NvmlError(12, "NVML Shared Library Not Found"), False),
        (NvmlError(18, "Driver/library version mismatch"), True),
        (NvmlError(999, "Unknown Error"), True),
    ],
)
def test_no_driver_means_the_cpu_and_a_broken_one_is_a_problem(error: NvmlError, problem: bool) -> None:
    found = read_devices({}, FakeNvml(init_error=error))
    assert found.gpus == ()
    assert bool(found.problem) == problem
    assert str(error) in (found.problem or found.reason)


def test_a_gpu_that_is_lost_is_a_problem() -> None:
    nvml = FakeNvml(*FOUR, lost=True)
    found = read_devices({}, nvml)
    assert (found.gpus, found.problem) == ((), "NVML answers: GPU is lost")
    assert nvml.shut_down


def test_without_the_drivers_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: None)
    found = read_devices({})
    assert (found.gpus, found.problem, found.reason) == ((), "", "no NVIDIA driver")


@pytest.mark.parametrize("variable", ["void", "none"])
def test_a_container_that_was_given_no_gpus_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: None)
    found = read_devices({"NVIDIA_VISIBLE_DEVICES": variable}, root=tmp_path)
    assert (found.gpus, found.problem, found.reason) == ((), "", f"NVIDIA_VISIBLE_DEVICES={variable}")


def test_devices_that_cdi_injected_count_although_the_variable_says_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvidia-ctk cdi generate` writes NVIDIA_VISIBLE_DEVICES=void beside the devices: the old hook keeps away then."""
    monkeypatch.setattr(devices, "_load_nvml", lambda: FakeNvml(*FOUR))
    root = write_files(tmp_path, {"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/nvidia0": ""})
    assert len(read_devices({"NVIDIA_VISIBLE_DEVICES": "void"}, root=root).gpus) == 4


AFFINITY = float(len(os.sched_getaffinity(0)))
V2, OWN = "sys/fs/cgroup", "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 32.0),
        ({OWN: "0::/\n"}, 32.0),
        ({OWN: "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, 32.0),
        ({OWN: "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}, 1.5),
        ({OWN: "0::/\n", f"{V2}/cpu.max": "6400000 100000\n"}, 32.0),
        ({OWN: "0::/job/step\n", f"{V2}/job/step/cpu.max": "max 100000\n", f"{V2}/job/cpu.max": "400000 100000\n"}, 4.0),
        ({OWN: "0::/job/step\n", f"{V2}/job/step/cpu.max": "200000 100000\n", f"{V2}/job/cpu.max": "400000 100000\n"}, 2.0),
        ({OWN: "0::/docker/0a1b\n", f"{V2}/cpu.max": "300000 100000\n"}, 3.0),  # the host's path, our own top
        ({OWN: "0::/../..\n", f"{V2}/cpu.max": "50000 100000\n"}, 0.5),
        (
            {OWN: "4:cpu,cpuacct:/job\n0::/x\n", f"{V2}/cpu/job/cpu.cfs_quota_us": "250000\n",
             f"{V2}/cpu/job/cpu.cfs_period_us": "100000\n"}, 2.5,
        ),
        (
            {OWN: "4:cpu,cpuacct:/docker/0a1b\n", f"{V2}/cpu/cpu.cfs_quota_us": "100000\n",
             f"{V2}/cpu/cpu.cfs_period_us": "100000\n"}, 1.0,
        ),
        ({OWN: "4:cpu:/\n", f"{V2}/cpu/cpu.cfs_quota_us": "-1\n", f"{V2}/cpu/cpu.cfs_period_us": "100000\n"}, 32.0),
        ({OWN: "2:memory:/\n", f"{V2}/memory/cpu.max": "100000 100000\n"}, 32.0),
        ({OWN: "0::/\n", f"{V2}/cpu.max": "\n"}, 32.0),
    ],
)  # fmt: skip
def test_cpus_are_those_of_the_affinity_or_of_a_smaller_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    assert count_cpus(write_files(tmp_path, files)) == cpus


def test_cpus_of_this_machine_can_be_counted() -> None:
    assert 0 < count_cpus() <= AFFINITY


def test_cgroups_are_listed_from_our_own_up_to_the_top(tmp_path: Path) -> None:
    root = write_files(tmp_path, {OWN: "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 1"})
    top = root / V2
    assert cgroup_folders(root, "cpu") == [top / "a/b", top / "a", top]
