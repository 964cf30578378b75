"""Device, number of processes, backend and threads of a node."""

import pytest
from environments import BARE_SRUN, ENROOT, ENROOT_TASKS, OPEN_MPI_TASKS, PLAIN, TWO_TASKS_PER_NODE
from stand_ins import make_devices, resolve

from slipway.launch.resolve.devices import Devices
from slipway.protocol.errors import LaunchError


@pytest.mark.parametrize(
    ("asked", "devices", "device", "processes", "backend"),
    [
        ("auto", make_devices(8), "cuda", 8, "nccl"),
        ("auto", make_devices(0, cpus=16.0), "cpu", 2, "gloo"),
        ("auto", make_devices(0, cpus=1.5), "cpu", 1, "gloo"),
        ("auto", make_devices(0, cpus=0.5), "cpu", 1, "gloo"),
        ("gpu", make_devices(3), "cuda", 3, "nccl"),
        ("cpu", make_devices(2, cpus=6.0), "cpu", 6, "gloo"),
        ("cpu", make_devices(0, cpus=2.5), "cpu", 2, "gloo"),
        ("1", make_devices(8), "cuda", 1, "nccl"),
        ("8", make_devices(8), "cuda", 8, "nccl"),
        ("4", make_devices(0), "cpu", 4, "gloo"),
        ("cpu", make_devices(0, problem="Driver/library version mismatch"), "cpu", 4, "gloo"),
        ("cpu", make_devices(2, capability=(6, 1)), "cpu", 4, "gloo"),
        ("auto", make_devices(1, capability=(7, 0)), "cuda", 1, "nccl"),
        ("auto", make_devices(1, capability=(12, 0)), "cuda", 1, "nccl"),
    ],
)
def test_processes_follow_gpus_and_cores(
    asked: str, devices: Devices, device: str, processes: int, backend: str
) -> None:
    topology = resolve({"NPROC_PER_NODE": asked}, devices=devices)
    assert (topology.device, topology.processes_per_node, topology.backend) == (device, processes, backend)


def test_processes_share_a_gpu_only_where_that_was_asked_for() -> None:
    asked = {"NPROC_PER_NODE": "2"}
    with pytest.raises(LaunchError, match="--oversubscribe"):
        resolve(asked, devices=make_devices(1))
    topology = resolve(asked | {"SLIPWAY_OVERSUBSCRIBE": "1"}, devices=make_devices(1))
    assert (topology.device, topology.processes_per_node) == ("cuda", 2)
    assert topology.backend == "gloo"  # NCCL refuses two ranks on one GPU


def test_the_arithmetic_does_not_count_gpus_that_are_shared_twice() -> None:
    topology = resolve({"NPROC_PER_NODE": "2", "SLIPWAY_OVERSUBSCRIBE": "1"}, devices=make_devices(1))
    assert "2 GPUs" not in topology.arithmetic


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(LaunchError, match="SLIPWAY_OVERSUBSCRIBE=maybe"):
        resolve({"NPROC_PER_NODE": "2", "SLIPWAY_OVERSUBSCRIBE": "maybe"}, devices=make_devices(1))


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi"])
def test_a_backend_that_was_chosen_is_taken(backend: str) -> None:
    assert resolve({"SLIPWAY_BACKEND": backend}, devices=make_devices(1)).backend == backend


def test_tasks_that_see_a_gpu_each_talk_over_nccl() -> None:
    """Under --gpus-per-task=1 every task sees one device, its own, while SLURM_GPUS_ON_NODE counts both."""
    environ = TWO_TASKS_PER_NODE | {"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    topology = resolve(environ, devices=make_devices(1))
    assert (topology.device, topology.backend) == ("cuda", "nccl")


@pytest.mark.parametrize(
    ("environ", "env_file", "devices", "threads"),
    [
        ({}, {}, make_devices(0, cpus=8.0), 4),
        ({}, {}, make_devices(8, cpus=64.0), 8),
        ({}, {}, make_devices(8, cpus=4.0), 1),
        ({}, {}, make_devices(1, cpus=1.5), 1),
        ({}, {}, make_devices(1, cpus=7.9), 7),
        ({"OMP_NUM_THREADS": "3"}, {}, make_devices(8, cpus=64.0), None),
        ({"OMP_NUM_THREADS": "1"}, {}, make_devices(8, cpus=64.0), None),
        ({"OMP_NUM_THREADS": ""}, {}, make_devices(8, cpus=64.0), 8),
        ({}, {"OMP_NUM_THREADS": "2"}, make_devices(8, cpus=64.0), None),
        (PLAIN | {"OMP_NUM_THREADS": "1"}, {}, make_devices(2, cpus=8.0), None),
        (BARE_SRUN | {"OMP_NUM_THREADS": "1"}, {}, make_devices(2, cpus=8.0), None),
        (BARE_SRUN | ENROOT | {"OMP_NUM_THREADS": "4"}, {}, make_devices(2, cpus=8.0), None),
        (TWO_TASKS_PER_NODE | ENROOT_TASKS, {}, make_devices(2, cpus=8.0), 4),  # the hook's 1, which nobody chose
        (OPEN_MPI_TASKS, {}, make_devices(4, cpus=8.0), 2),
    ],
)
def test_threads_share_the_cores_unless_the_user_chose(
    environ: dict[str, str], env_file: dict[str, str], devices: Devices, threads: int | None
) -> None:
    assert resolve(environ, env_file=env_file, devices=devices).threads == threads


@pytest.mark.parametrize("asked", ["cpu", "2"])
def test_who_says_how_many_processes_may_leave_slurms_gpus_alone(asked: str) -> None:
    assert resolve(BARE_SRUN | {"SLURM_GPUS_ON_NODE": "4", "NPROC_PER_NODE": asked}).device == "cpu"
