"""Names that look like ours, mistyped: each is told, and nobody else's is taken for one."""

import re
from pathlib import Path

import pytest
from environments import CASES
from stand_ins import Slipway

from slipway.launch.resolve.settings import NAMES
from slipway.launch.resolve.sources import WITHIN, misspelt

CODE = Path(__file__).parents[4] / "entrypoint/slipway"

SLIPS = {
    "MASTER_ADRR": "MASTER_ADDR",
    "MASTER_ADR": "MASTER_ADDR",
    "MASTER_ADDRESS": "MASTER_ADDR",
    "MASTERADDR": "MASTER_ADDR",
    "MASTER_ADDDR": "MASTER_ADDR",
    "MASTER_POTR": "MASTER_PORT",
    "WORLDSIZE": "WORLD_SIZE",
    "WOLRD_SIZE": "WORLD_SIZE",
    "RNAK": "RANK",
    "NODERANK": "NODE_RANK",
    "NNODE": "NNODES",
    "NPROC_PERNODE": "NPROC_PER_NODE",
    "NPROCS_PER_NODE": "NPROC_PER_NODE",
    "NUM_PROC_PER_NODE": "NPROC_PER_NODE",
    "WORKLAOD": "WORKLOAD",
    "SLIPWAY_MAX_RESTART": "SLIPWAY_MAX_RESTARTS",
    "SLIPWAY_RESTARTS": "SLIPWAY_MAX_RESTARTS",
    "SLIPWAY_GRACE": "SLIPWAY_GRACE_SECONDS",
    "SLIPWAY_FAILURE": "SLIPWAY_AFTER_FAILURE_SECONDS",
    "SLIPWAY_HANG_TIMEOUT": "SLIPWAY_HANG_SECONDS",
    "SLIPWAY_WORLD_SIZE": "WORLD_SIZE",
    "SLIPWAY_MASTER_PORT": "MASTER_PORT",
    "SLIPAWY_TOKEN": "SLIPWAY_TOKEN",
    "SLIPWY_GRACE_SECOND": "SLIPWAY_GRACE_SECONDS",
}
# What others set: CUDA and NCCL, torch, schedulers, clouds, shells, libraries of experiments.
FOREIGN = """
BANK CHECK DEBUG HOST HOSTNAME JOB_ID LOCAL_RANK LOCAL_WORLD_SIZE GLOBAL_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK
ROLE_WORLD_SIZE MASTER_HOST MASTER_IP MASTER_NAME MASTER_NODE MASTER_POD MASTER_POINT MAX_RESTARTS MODE_RANK N_NODES NODE NODES NODE_ID NODE_IP NODE_NAME NODES_LIST
NODE_RANKS_FILE NPROC NUM_NODES NUM_GPUS NUM_PROCESSES GPUS_PER_NODE PORT RANKS RUN_DIR RESUME TANK TOKEN TRAINING_PORT
WORK WORKDIR WORKER_RANK WORKLOADS WORKLOAD_NAME WORKLOAD_ID WORKSPACE WORLD WORLD_RANK
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_HOME NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_P2P_DISABLE NCCL_MASTER_PORT GLOO_SOCKET_IFNAME UCX_TLS
OMP_NUM_THREADS MKL_NUM_THREADS PYTORCH_CUDA_ALLOC_CONF TORCH_DISTRIBUTED_DEBUG TORCHELASTIC_RESTART_COUNT
HF_HOME HF_TOKEN HUGGING_FACE_HUB_TOKEN TRANSFORMERS_CACHE TOKENIZERS_PARALLELISM WANDB_API_KEY WANDB_MODE
ACCELERATE_USE_FSDP DEEPSPEED_TIMEOUT MLFLOW_TRACKING_URI CLEARML_TASK_ID COMET_API_KEY
SM_HOSTS SM_CURRENT_HOST AZ_BATCH_MASTER_NODE LSB_HOSTS PBS_NODEFILE FLUX_TASK_RANK PMI_RANK PMI_SIZE PMIX_RANK MPI_LOCALRANKID
RAY_ADDRESS DASK_SCHEDULER_ADDRESS SPARK_MASTER_HOST SPARK_MASTER_PORT REDIS_MASTER_PORT_6379_TCP_ADDR MYSQL_MASTER_HOST
PATH HOME USER SHELL LANG TERM PWD EDITOR PS1 http_proxy NO_PROXY SSH_CLIENT XDG_RUNTIME_DIR VIRTUAL_ENV PYTHONPATH
"""
SERVICES = {
    "SLIPWAY_SERVICE_HOST": "10.0.0.1",
    "SLIPWAY_SERVICE_PORT": "29500",
    "SLIPWAY_SERVICE_PORT_RENDEZVOUS": "29500",
    "SLIPWAY_PORT": "tcp://10.0.0.1:29500",
    "SLIPWAY_MASTER_PORT": "tcp://10.0.0.1:29500",
    "SLIPWAY_TRAIN_PORT_29500_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize(("name", "right"), SLIPS.items())
def test_a_slip_is_told_with_the_right_name(name: str, right: str) -> None:
    assert list(misspelt({name: "3"}, "the environment")) == [
        f"{name} (from the environment) is not a setting of Slipway. Did you mean {right}?"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "WOLRD_ISZE",  # two slips in a name of 9 letters
        "MASTRE_PROT",
        "MASTER_PROXY",
        "WOKALOAD",  # neither of these is two letters that changed places
        "WOZRLOAD",
        "RKNA",  # in a name of 4, of which only two neighbours may change places
        "SLIPAWY_RUN",  # in one of 11 letters
        "NPORC_PRE_NODS",  # three in one of 12
        "SLIPAWY_GARCE_SECONS",
    ],
)
def test_a_name_with_more_slips_than_its_length_allows_may_be_another_programs(name: str) -> None:
    assert list(misspelt({name: "3"}, "the environment")) == []


def test_what_begins_as_ours_and_is_near_to_nothing_leads_to_the_list() -> None:
    [told] = misspelt({"SLIPWAY_BANANAS": "secret"}, ".env")
    assert told == "SLIPWAY_BANANAS (from .env) is not a setting of Slipway; `slipway run --help` lists them."


@pytest.mark.parametrize(
    "environ",
    [
        dict.fromkeys(FOREIGN.split(), "1"),
        SERVICES,
        dict.fromkeys([*NAMES, *WITHIN, "SLIPWAY_TEST_HOOKS"], "1"),
        {"MASTER_ADRR": "", "SLIPWAY_TYPO": ""},
        *(case.env for case in CASES),
    ],
)
def test_names_of_others_and_of_ours_are_left_alone(environ: dict[str, str]) -> None:
    assert list(misspelt(environ, "the environment")) == []


def test_each_name_is_looked_at_whatever_stands_before_it() -> None:
    given = {"RANK": "0", "SLIPWAY_TYPO": "", **SERVICES, "WORKLAOD": "gpt", "PATH": "/bin", "MASTER_ADRR": "n0"}
    assert [told.partition(" ")[0] for told in misspelt(given, "the environment")] == ["WORKLAOD", "MASTER_ADRR"]


def test_a_name_whose_right_one_is_there_was_not_meant_to_be_that() -> None:
    assert list(misspelt({"MASTER_ADDRS": "a,b"}, "the environment", {"MASTER_ADDR"})) == []


def test_every_variable_that_the_code_speaks_of_is_known() -> None:
    texts = (file.read_text() for file in [*CODE.rglob("*.py"), CODE.parent / "slipway.pth"])
    spoken = {name for text in texts for name in re.findall(r"\bSLIPWAY_[A-Z_]*[A-Z]\b", text)}
    assert spoken - NAMES - WITHIN - {"SLIPWAY_GRACE", "SLIPWAY_CPU", "SLIPWAY_COMPLETE"} == set()


def test_a_start_tells_it_from_the_environment_and_from_the_file(slipway: Slipway, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MASTER_ADRR=n0\n")
    planned = slipway("plan", "linear", SLIPWAY_MAX_RESTART="5")
    assert planned.code == 0
    assert "warning: SLIPWAY_MAX_RESTART (from the environment) is not a setting" in planned.out
    assert "warning: MASTER_ADRR (from .env) is not a setting of Slipway. Did you mean MASTER_ADDR?" in planned.out
    failed = slipway("plan", "linear", WORLD_SIZE="2")
    assert failed.code == 78
    assert failed.err.rstrip().endswith("Did you mean MASTER_ADDR?")
