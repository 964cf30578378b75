"""Device, number of processes, backend and threads of a node."""

import pytest
from environments import BARE_SRUN, ENROOT, ENROOT_TASKS, MPICH, OPEN_MPI_TASKS, PLAIN, TWO_TASKS_PER_NODE
from stand_ins import make_devices, resolve

from slipway.launch.resolve.devices import Devices, Gpu
from slipway.protocol.errors import UNHEALTHY, LaunchError

GIVEN = BARE_SRUN | {"SLURM_GPUS_ON_NODE": "4"}


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


@pytest.mark.parametrize("asked", ["auto", "gpu", "2"])
def test_gpus_that_slurm_gave_are_not_left_alone_by_accident(asked: str) -> None:
    with pytest.raises(LaunchError, match="Slurm gave this job 4") as caught:
        resolve(GIVEN | {"NPROC_PER_NODE": asked})
    assert caught.value.code == UNHEALTHY
    assert "CUDA_VISIBLE_DEVICES" not in str(caught.value)  # Slurm sets it for each task


@pytest.mark.parametrize(
    ("asked", "devices", "processes"),
    [("cpu", make_devices(), 4), ("2", make_devices(hidden=True), 2), ("auto", make_devices(hidden=True), 2)],
)
def test_who_means_the_cpu_may_leave_slurms_gpus_alone(asked: str, devices: Devices, processes: int) -> None:
    topology = resolve(GIVEN | {"NPROC_PER_NODE": asked}, devices=devices)
    assert (topology.device, topology.processes_per_node) == ("cpu", processes)


def make_slices(*uuids: str, gpus: int = 1) -> Devices:
    """MIG slices, in turns of so many GPUs."""
    slices = (Gpu(place % gpus, uuid, "NVIDIA H100 MIG 1g.10gb", (9, 0)) for place, uuid in enumerate(uuids))
    return make_devices(1)._replace(gpus=tuple(slices))


@pytest.mark.parametrize(
    ("environ", "devices", "processes", "backend"),
    [
        ({}, make_slices("MIG-a"), 1, "nccl"),
        ({}, make_slices("MIG-a", "MIG-b", "MIG-c", "MIG-d", "MIG-e", "MIG-f", "MIG-g"), 7, "gloo"),
        ({}, make_slices("MIG-a", "MIG-b", gpus=2), 2, "nccl"),
        ({}, make_slices("MIG-a", "MIG-b", "MIG-c", gpus=2), 3, "gloo"),
        ({"NPROC_PER_NODE": "2"}, make_slices("MIG-a", "MIG-b", "MIG-c", gpus=2), 2, "nccl"),
        ({"SLIPWAY_BACKEND": "nccl"}, make_slices("MIG-a", "MIG-b"), 2, "nccl"),  # a newer NCCL may know how
        (TWO_TASKS_PER_NODE, make_slices("MIG-a"), 2, "gloo"),  # its neighbour's slice may be of the same GPU
        (TWO_TASKS_PER_NODE, make_slices("MIG-a", "MIG-b"), 2, "gloo"),
    ],
)
def test_slices_of_one_gpu_talk_over_gloo(
    environ: dict[str, str], devices: Devices, processes: int, backend: str
) -> None:
    topology = resolve(environ, devices=devices)
    assert (topology.processes_per_node, topology.backend) == (processes, backend)


def test_slices_are_called_so() -> None:
    topology = resolve({}, devices=make_slices("MIG-a", "MIG-b"))
    assert topology.arithmetic.startswith("1 node × 2 MIG slices = 2 processes")
    assert [note for note in topology.notes if note.startswith("MIG: each process sees its own slice alone")]
    one = resolve({"SLIPWAY_OVERSUBSCRIBE": "1", "NPROC_PER_NODE": "2"}, devices=make_slices("MIG-a"))
    assert "2 processes sharing 1 MIG slice" in one.arithmetic
    assert not [note for note in resolve({}, devices=make_devices(2)).notes if "MIG" in note]


def make_sockets(*gpus: int, cpus: int = 64) -> Devices:
    """GPUs on two NUMA nodes with half of the cores each: the node of each GPU, -1 for one that nobody knows."""
    near = {0: tuple(range(cpus // 2)), 1: tuple(range(cpus // 2, cpus)), -1: ()}
    cards = make_devices(len(gpus), cpus=float(cpus))
    return cards._replace(
        gpus=tuple(gpu._replace(cores=near[place]) for gpu, place in zip(cards.gpus, gpus, strict=True))
    )


UNEVEN = Devices(
    tuple(
        gpu._replace(cores=cores) for gpu, cores in zip(make_devices(2).gpus, (tuple(range(31)), (31,)), strict=True)
    ),
    32.0,
)
BINDING = "(--cpu-binding none leaves it to the system)"


@pytest.mark.parametrize(
    ("environ", "devices", "told"),
    [
        ({}, make_sockets(0, 0, 1, 1), f"CPU binding: local rank 0, 1 on cores 0-31; 2, 3 on cores 32-63, near their GPUs {BINDING}"),
        ({}, make_sockets(1), f"CPU binding: local rank 0 on cores 32-63, near their GPUs {BINDING}"),
        ({}, make_sockets(0, -1), f"CPU binding: local rank 0 on cores 0-31, near their GPUs {BINDING}"),
        ({"SLIPWAY_CPU_BINDING": "none"}, make_sockets(0, 0, 1, 1), None),
        ({}, UNEVEN, None),  # the second process would have a core of its own, and all would wait for it
        ({"NPROC_PER_NODE": "2"}, make_sockets(0, 0, 1, 1), None),  # perhaps with two GPUs each
        ({"NPROC_PER_NODE": "cpu"}, make_sockets(0, 0, 1, 1), None),
        ({}, make_devices(4), None),
        (
            TWO_TASKS_PER_NODE | {"CUDA_VISIBLE_DEVICES": "1"}, make_sockets(1),
            f"CPU binding: local rank 1 on cores 32-63, near their GPUs {BINDING}",
        ),
        (
            TWO_TASKS_PER_NODE | {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}, make_sockets(0, 1),
            f"CPU binding: local rank 0 on cores 0-31, near their GPUs {BINDING}",
        ),
    ],
)  # fmt: skip
def test_the_cores_near_a_gpu_are_told(environ: dict[str, str], devices: Devices, told: str | None) -> None:
    notes = [note for note in resolve(environ, devices=devices).notes if note.startswith("CPU binding")]
    assert notes == ([told] if told else [])


@pytest.mark.parametrize(
    ("environ", "devices", "threads"),
    [
        ({}, make_sockets(0, 0, 1, 1), 16),
        ({}, make_sockets(0, 0, 0, 1), 10),  # three on the 32 cores of one node
        ({}, make_sockets(0), 32),
        ({"SLIPWAY_CPU_BINDING": "none"}, make_sockets(0), 64),
        ({}, make_sockets(0, 0)._replace(cpus=4.0), 2),  # a quota
        (TWO_TASKS_PER_NODE | {"SLURM_CPUS_PER_TASK": ""}, make_sockets(1), 32),  # its neighbour's cores are unknown
    ],
)
def test_threads_are_shared_among_those_on_the_same_cores(
    environ: dict[str, str], devices: Devices, threads: int
) -> None:
    assert resolve(environ, devices=devices).threads == threads


@pytest.mark.parametrize("environ", [TWO_TASKS_PER_NODE, OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, MPICH])
def test_a_number_of_processes_that_is_typed_beside_a_launcher_per_process_fits_or_is_refused(
    environ: dict[str, str],
) -> None:
    for fits in ("1", "2", "auto", "cpu"):
        assert resolve(environ, {"NPROC_PER_NODE": fits}).processes_per_node == 2
    with pytest.raises(LaunchError, match=r"--nproc-per-node 3, but by .* one of 2 launchers.* add --standalone"):
        resolve(environ, {"NPROC_PER_NODE": "3"})
    alone = {"NPROC_PER_NODE": "3", "WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    topology = resolve(environ, alone)
    assert (topology.level, topology.processes_per_node) == ("node", 3)
