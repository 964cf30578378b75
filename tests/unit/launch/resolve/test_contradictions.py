"""What cannot be understood is refused: the message says what was read, from where and what to type; and the exit code."""

from typing import Any

import pytest
from environments import BARE_SRUN, INDEXED_JOB, OPEN_MPI, PER_PROCESS, PLAIN, SKYPILOT, TRAINER, TWO_TASKS_PER_NODE
from stand_ins import make_devices, resolve

from slipway.launch.resolve.devices import Devices
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY, LaunchError

POD = {"fqdn": "lm-2.lm.default.svc.cluster.local"}
GPUS = BARE_SRUN | {"SLURM_GPUS_ON_NODE": "4"}
BROKEN = Devices(problem="NVML answers: Driver/library version mismatch", reason="NVML answers: …")


def refuse(environ: dict[str, str], **more: Any) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        resolve(environ, **more)
    return caught.value


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (PLAIN | {"RANK": "2"}, ("RANK=2", "from the environment", "WORLD_SIZE=2", "0 or 1", "set RANK=1")),
        (PLAIN | {"RANK": "4", "WORLD_SIZE": "4"}, ("RANK=4", "0 to 3")),
        ({"RANK": "1", "WORLD_SIZE": "1"}, ("RANK=1", "only 0")),
        (PLAIN | {"RANK": "9"}, ("RANK=9", "0 or 1")),
        ({"NODE_RANK": "2", **PLAIN}, ("RANK=2", "environment (NODE_RANK)")),
        (PLAIN | {"RANK": "-1"}, ("RANK=-1", "from the environment", "0 to 65535", "Set for example RANK=0")),
        (PLAIN | {"RANK": "one"}, ("RANK=one", "a number from 0 to 65535 or auto is needed", "RANK=0")),
        (PLAIN | {"RANK": "0.5"}, ("RANK=0.5", "a number from 0 to 65535 or auto")),
        (PLAIN | {"WORLD_SIZE": "0"}, ("WORLD_SIZE=0", "1 to 65536", "WORLD_SIZE=1")),
        (PLAIN | {"WORLD_SIZE": "two"}, ("WORLD_SIZE=two", "from the environment", "WORLD_SIZE=1")),
        ({"RANK": "1"}, ("RANK=1", "WORLD_SIZE", "not given", "--nnodes N", "--standalone")),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("WORLD_SIZE=2 (from the environment) counts nodes; for one machine unset it. 2 nodes need MASTER_ADDR", "-e MASTER_ADDR=HOST", "--master-addr HOST")),
        ({k: v for k, v in OPEN_MPI.items() if k != "MASTER_ADDR"}, ("MASTER_ADDR", "-x MASTER_ADDR=HOST", "mpirun")),
        (PLAIN | {"MASTER_PORT": "70000"}, ("MASTER_PORT=70000", "from the environment", "65534", "MASTER_PORT=29500")),
        (PLAIN | {"MASTER_PORT": "65535"}, ("MASTER_PORT=65535", "65534")),  # the next one is torchrun's store
        (PLAIN | {"MASTER_PORT": "http"}, ("MASTER_PORT=http", "a whole number")),
        (PLAIN | {"MASTER_PORT": "0"}, ("MASTER_PORT=0", "from the environment", "Set a number")),
        (PLAIN | {"MASTER_PORT": "00"}, ("MASTER_PORT=00", "Set a number")),
        (PLAIN | {"NNODES": "4:2"}, ("4:2", "environment (NNODES)", "the smaller number of nodes first", "--nnodes")),
        (TRAINER | {"PET_NNODES": "4:1"}, ("4:1", "Kubeflow Trainer (PET_NNODES)", "the smaller number")),
        (PLAIN | {"NNODES": "2:4", "NODE_RANK": "4"}, ("RANK=4", "2:4", "0 to 3")),
        ({"TORCHELASTIC_RUN_ID": "none", **PLAIN}, ("TORCHELASTIC_RUN_ID", "already a worker", "slipway run")),
        (BARE_SRUN | {"RANK": "0"}, ("RANK=0", "SLURM_NODEID", "SLURM_PROCID", "says 1", "Unset RANK", "--node-rank")),
        (BARE_SRUN | {"WORLD_SIZE": "16"}, ("WORLD_SIZE=16", "SLURM_STEP_NUM_NODES", "SLURM_NTASKS", "--nnodes")),
        (SKYPILOT | {"RANK": "0"}, ("RANK=0", "SKYPILOT_NODE_RANK", "says 1", "--node-rank")),
        (SKYPILOT | {"WORLD_SIZE": "16"}, ("WORLD_SIZE=16", "SKYPILOT_NUM_NODES", "says 2", "--nnodes")),
        ({"LOCAL_RANK": "0"}, ("environment (LOCAL_RANK) = 0", "unset LOCAL_RANK")),
        (PER_PROCESS | {"LOCAL_RANK": "2"}, ("LOCAL_RANK", "do not fit together", "--ntasks-per-node=1")),
        (PER_PROCESS | {"RANK": "4"}, ("RANK", "do not fit together")),
        (TWO_TASKS_PER_NODE | {"SLURM_PROCID": ""}, ("one launcher per process", "srun --ntasks-per-node=1")),
        (BARE_SRUN | {"SLURM_STEP_NODELIST": "gpu[07-"}, ("gpu[07-", "--master-addr HOST")),
        ({"SLIPWAY_BACKEND": "nccl"}, ("nccl", "environment (SLIPWAY_BACKEND)", "--backend gloo", "nvidia-smi")),
        ({"SLIPWAY_BACKEND": "ucc"}, ("SLIPWAY_BACKEND=ucc", "auto, nccl, gloo, mpi")),
        ({"NPROC_PER_NODE": "0"}, ("NPROC_PER_NODE=0", "1 to 1024", "NPROC_PER_NODE=auto")),
        ({"NPROC_PER_NODE": "many"}, ("NPROC_PER_NODE=many", "auto, gpu or cpu")),
        ({"NPROC_PER_NODE": "gpu"}, ("NPROC_PER_NODE=gpu", "from the environment", "nvidia-smi", "auto")),
    ],
)  # fmt: skip
def test_a_mistake_in_the_environment_says_what_to_type(environ: dict[str, str], says: tuple[str, ...]) -> None:
    error = refuse(environ)
    assert error.code == CONFIGURATION
    assert "\n" not in str(error)
    assert [text for text in says if text not in str(error)] == []


@pytest.mark.parametrize(
    ("environ", "env_file", "says"),
    [
        (INDEXED_JOB | {"NNODES": "4", "RANK": "0"}, {}, ("RANK=0", "JOB_COMPLETION_INDEX", "says 2", "--node-rank")),
        (INDEXED_JOB | {"NNODES": "4"}, {"RANK": "0"}, ("RANK=0", ".env", "JOB_COMPLETION_INDEX")),
        (INDEXED_JOB, {}, ("RANK=2", "Kubernetes (JOB_COMPLETION_INDEX)", "NNODES=N")),
    ],
)
def test_a_pod_whose_index_and_rank_disagree_is_refused(
    environ: dict[str, str], env_file: dict[str, str], says: tuple[str, ...]
) -> None:
    error = refuse(environ, env_file=env_file, **POD)
    assert error.code == CONFIGURATION
    assert [text for text in says if text not in str(error)] == []


def test_a_pod_without_a_service_is_told_what_its_template_lacks() -> None:
    error = refuse(INDEXED_JOB | {"NNODES": "4"}, fqdn="lm-2")
    assert "headless Service" in str(error)
    assert "subdomain" in str(error)


def test_several_nodes_cannot_be_told_without_the_size_of_each() -> None:
    """Rank 3 with local rank 1 cannot be on a single node, so how many processes each node has must be said."""
    error = refuse({name: value for name, value in PER_PROCESS.items() if name != "LOCAL_WORLD_SIZE"})
    assert error.code == CONFIGURATION
    assert "LOCAL_WORLD_SIZE" in str(error)


def test_the_command_line_decides_between_sources_that_disagree() -> None:
    assert resolve(BARE_SRUN | {"RANK": "0"}, {"RANK": "1"}).node_rank == 1
    assert resolve(SKYPILOT | {"RANK": "0", "NODE_RANK": "1"}, devices=make_devices(8)).node_rank == 1


def test_an_address_typed_by_the_user_makes_an_unreadable_host_list_harmless() -> None:
    environ = BARE_SRUN | {"SLURM_STEP_NODELIST": "gpu[07-"}
    assert resolve(environ, {"MASTER_ADDR": "gpu07"}).master_addr == "gpu07"


@pytest.mark.parametrize(
    ("environ", "devices", "code", "says"),
    [
        ({"NPROC_PER_NODE": "9"}, make_devices(8), CONFIGURATION, ("NPROC_PER_NODE=9", "8 GPUs are", "--oversubscribe")),
        ({"NPROC_PER_NODE": "2"}, make_devices(1), CONFIGURATION, ("1 GPU is visible", "Use 1 or auto")),
        ({"SLIPWAY_BACKEND": "nccl", "NPROC_PER_NODE": "cpu"}, make_devices(2), CONFIGURATION, ("nccl", "gloo")),
        ({}, BROKEN, UNHEALTHY, ("version mismatch", "NPROC_PER_NODE=cpu")),
        (GPUS, make_devices(), UNHEALTHY, ("gave this job 4", "no NVIDIA driver", "nvidia-smi", "NPROC_PER_NODE=cpu")),
        ({"NPROC_PER_NODE": "4"}, BROKEN, UNHEALTHY, ("version mismatch",)),
    ],
)  # fmt: skip
def test_gpus_that_do_not_fit_end_with_their_own_code(
    environ: dict[str, str], devices: Devices, code: int, says: tuple[str, ...]
) -> None:
    error = refuse(environ, devices=devices)
    assert error.code == code
    assert [text for text in says if text not in str(error)] == []


def test_a_number_of_nodes_in_a_file_does_not_overrule_slurm() -> None:
    error = refuse(BARE_SRUN, env_file={"NNODES": "3"})
    assert error.code == CONFIGURATION
    assert all(
        part in str(error) for part in ("WORLD_SIZE=3", ".env (NNODES)", "SLURM_STEP_NUM_NODES) says 2", "--nnodes")
    )
    assert resolve(BARE_SRUN | {"NNODES": "3"}).nodes == 3  # which nobody copies from elsewhere
