"""GPUs as CUDA will count them, through a NVML that is made up; CPUs through made-up cgroup trees."""

import os
from pathlib import Path
from typing import Any

import pytest
from stand_ins import FakeNvml, NvmlError, make_card, write_files

from slipway.launch.resolve import devices
from slipway.launch.resolve.devices import read_devices
from slipway.protocol.cgroups import cgroup_folders, count_cpus

BARE = Path("/nowhere")  # a file system without device files, whatever this machine has
FOUR = [make_card(number) for number in range(4)]
SLICED = [
    make_card(0, slices=["MIG-aa", None, "MIG-ab"]),
    make_card(1),
    make_card(2, slices=()),
    make_card(3, slices=[]),
]


def visible(wanted: str | None, cards: list[Any]) -> list[str]:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    return [gpu.uuid for gpu in read_devices(environ, FakeNvml(*cards), BARE).gpus]


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
    found = read_devices({}, nvml, BARE)
    assert (found.gpus[0].number, found.gpus[0].name, found.gpus[0].capability) == (0, "NVIDIA H100", (7, 5))
    assert (found.driver, found.problem) == ("550.54.15", "")
    assert nvml.shut_down


@pytest.mark.parametrize("wanted", ["", "-1", "9"])
def test_why_there_is_no_gpu_is_told(wanted: str) -> None:
    found = read_devices({"CUDA_VISIBLE_DEVICES": wanted}, FakeNvml(*FOUR), BARE)
    assert (found.gpus, found.problem) == ((), "")
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
    found = read_devices({}, FakeNvml(init_error=error), BARE)
    assert found.gpus == ()
    assert bool(found.problem) == problem
    assert str(error) in (found.problem or found.reason)


def test_a_gpu_that_is_lost_is_a_problem() -> None:
    nvml = FakeNvml(*FOUR, lost=True)
    found = read_devices({}, nvml, BARE)
    assert (found.gpus, found.problem) == ((), "NVML answers: GPU is lost")
    assert nvml.shut_down


def test_without_the_drivers_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: None)
    found = read_devices({}, root=BARE)
    assert (found.gpus, found.problem, found.reason) == ((), "", "no NVIDIA driver")


@pytest.mark.parametrize("variable", ["void", "none"])
def test_a_container_that_was_given_no_gpus_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: None)
    found = read_devices({"NVIDIA_VISIBLE_DEVICES": variable}, root=tmp_path)
    assert (found.gpus, found.problem, found.reason) == ((), "", f"NVIDIA_VISIBLE_DEVICES={variable}")
    assert found.hidden


@pytest.mark.parametrize("file", ["dev/nvidia0", "dev/dxg"])  # the second is WSL2's
def test_devices_that_cdi_injected_count_although_the_variable_says_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """`nvidia-ctk cdi generate` writes NVIDIA_VISIBLE_DEVICES=void beside the devices: the old hook keeps away then."""
    monkeypatch.setattr(devices, "_load_nvml", lambda: FakeNvml(*FOUR))
    root = write_files(tmp_path, {"dev/nvidiactl": "", "dev/nvidia-uvm": "", file: ""})
    assert len(read_devices({"NVIDIA_VISIBLE_DEVICES": "void"}, root=root).gpus) == 4


@pytest.mark.parametrize(
    ("environ", "nvml", "problem"),
    [
        ({}, None, "/dev/nvidia0 is there, but no NVIDIA driver"),
        ({}, FakeNvml(), "/dev/nvidia0 is there, but the driver shows none"),
        ({}, FakeNvml(init_error=NvmlError(9, "Driver Not Loaded")), "/dev/nvidia0 is there, but NVML answers: Driver Not Loaded"),
        ({"CUDA_VISIBLE_DEVICES": "4"}, FakeNvml(*FOUR), "/dev/nvidia0 is there, but CUDA_VISIBLE_DEVICES='4' shows none"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-x"}, FakeNvml(*FOUR), "/dev/nvidia0 is there, but CUDA_VISIBLE_DEVICES='MIG-x' shows none"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, FakeNvml(*FOUR), ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, FakeNvml(*FOUR), ""),
        ({"CUDA_VISIBLE_DEVICES": "void"}, FakeNvml(init_error=NvmlError(999, "Unknown Error")), ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None, ""),  # a privileged container sees all device files
    ],
)  # fmt: skip
def test_where_there_are_device_files_the_cpu_is_taken_only_on_purpose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], nvml: FakeNvml | None, problem: str
) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: nvml)
    found = read_devices(environ, root=write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidiactl": ""}))
    assert (found.gpus, found.problem, found.hidden) == ((), problem, not problem)


@pytest.mark.parametrize("folder", ["usr/local/nvidia/lib64", "usr/lib/wsl/lib"])
def test_a_driver_that_lies_where_nobody_looks_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(devices, "_load_nvml", lambda: None)
    root = write_files(tmp_path, {f"{folder}/libnvidia-ml.so.1": ""})
    assert f"export LD_LIBRARY_PATH=/{folder}" in read_devices({}, root=root).problem
    assert read_devices({"CUDA_VISIBLE_DEVICES": ""}, root=root).problem == ""


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        (None, ["GPU-1a1b", "GPU-3a3b"]),
        ("0,1", ["GPU-1a1b", "GPU-3a3b"]),  # as Slurm numbers them inside such a cgroup, and CUDA counts them
        ("1", ["GPU-3a3b"]),
        ("2", []),
    ],
)
def test_gpus_that_a_cgroup_keeps_from_us_hide_no_others(wanted: str | None, uuids: list[str]) -> None:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    found = read_devices(environ, FakeNvml(*FOUR, forbidden=(0, 2)), BARE)
    assert ([gpu.uuid for gpu in found.gpus], found.problem) == (uuids, "")
    assert [gpu.number for gpu in found.gpus] == [int(uuid[4]) for uuid in uuids]  # nvidia-smi still shows them so


def test_who_may_use_no_gpu_is_told_why(tmp_path: Path) -> None:
    nvml = FakeNvml(*FOUR, forbidden=(0, 1, 2, 3))
    why = "this process may use none of the GPUs here: Insufficient Permissions"
    assert read_devices({}, nvml, BARE)[3:] == (why, "", False)
    root = write_files(tmp_path, {"dev/nvidia2": ""})
    assert read_devices({}, nvml, root).problem == f"/dev/nvidia2 is there, but {why}"


def test_slices_have_their_own_name_and_memory_and_the_cores_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    cards = [make_card(0, slices=["MIG-aa"], cores=range(4)), make_card(1, used=5, cores=range(4, 8))]
    sliced, whole = read_devices({}, FakeNvml(*cards), BARE).gpus
    assert (sliced.name, sliced.used, sliced.cores, sliced.is_slice) == (
        "NVIDIA H100 MIG 1g.10gb",
        1 << 30,
        (0, 1, 2, 3),
        True,
    )
    assert (whole.name, whole.used, whole.cores, whole.is_slice) == ("NVIDIA H100", 5, (4, 5, 6, 7), False)


@pytest.mark.parametrize(
    ("near", "ours", "cores"),
    [
        (range(32), range(64), tuple(range(32))),
        (range(64, 128), range(128), tuple(range(64, 128))),  # in NVML's second word
        ((0, 2, 65), (0, 1, 65, 66), (0, 65)),
        (range(32), range(16, 48), tuple(range(16, 32))),  # a cgroup or taskset with a part of them
        (range(32), range(16), ()),  # all that we have is near it
        (range(32), range(32, 64), ()),  # none is
        (None, range(64), ()),  # a virtual machine that says nothing
    ],
)
def test_the_cores_of_a_gpu_are_those_of_its_numa_node_that_are_ours(
    monkeypatch: pytest.MonkeyPatch, near: Any, ours: Any, cores: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(ours))
    assert read_devices({}, FakeNvml(make_card(0, cores=near)), BARE).gpus[0].cores == cores


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
