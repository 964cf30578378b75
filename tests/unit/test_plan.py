"""The torchrun command and environment that come out of a topology; nothing is started."""

import json
import sys

import pytest
from environments import ENROOT_TASKS, PER_PROCESS, PLAIN, PYTORCHJOB_NEW, TRAINER, TWO_TASKS_PER_NODE
from stand_ins import make_devices, make_sources, plan_for

from slipway.launch.plan import flight_recorder, plan_json, plan_lines, resolved_values
from slipway.launch.redact import redact
from slipway.launch.settings import SETTINGS
from slipway.launch.topology import TOPOLOGICAL

ALWAYS = ["--max-restarts=0", "--signals-to-handle=SIGHUP,SIGQUIT"]
LEASHED = ["setpriv", "--pdeathsig=KILL"]  # no worker outlives torchrun
OURS = [*LEASHED, sys.executable, "-u", "-m"]
USER = [*LEASHED, "env", "--default-signal=TERM,INT,USR1", sys.executable, "-u"]


def head(nodes: int, rank: int, processes: int, addr: str, port: int) -> list[str]:
    return [
        "torchrun", f"--nnodes={nodes}", f"--node-rank={rank}", f"--nproc-per-node={processes}", f"--master-addr={addr}",
        f"--master-port={port}", *ALWAYS, "--no-python",
    ]  # fmt: skip


SINGLE = head(1, 0, 2, "127.0.0.1", 40_001)


@pytest.mark.parametrize(
    ("words", "environ", "argv"),
    [
        (["linear"], {}, [*SINGLE, *OURS, "slipway.train.workloads.linear"]),
        (["linear"], {"MASTER_ADDR": "left-over"}, [*SINGLE, *OURS, "slipway.train.workloads.linear"]),
        (["gpt", "--lr", "1e-3"], {}, [*SINGLE, *OURS, "slipway.train.workloads.gpt", "--lr", "1e-3"]),
        (["linear"], PLAIN, [*head(2, 1, 2, "10.0.0.1", 29_501), *OURS, "slipway.train.workloads.linear"]),
        (
            ["linear"],
            TRAINER,
            [*head(3, 1, 2, "mnist-node-0-0.mnist", 29_501), *OURS, "slipway.train.workloads.linear"],
        ),
        (
            ["linear"],
            {"MASTER_PORT": "4000"},
            [*head(1, 0, 2, "127.0.0.1", 4000), *OURS, "slipway.train.workloads.linear"],
        ),
        (["train.py", "--its-own", "a b"], {}, [*SINGLE, *USER, "train.py", "--its-own", "a b"]),
        (["-m", "pkg.main", "-v"], {}, [*SINGLE, *USER, "-m", "pkg.main", "-v"]),
        (["linear"], PER_PROCESS, [*OURS, "slipway.train.workloads.linear"]),
        (["train.py", "x"], PER_PROCESS, [*USER, "train.py", "x"]),
    ],
)
def test_the_command_line_of_torchrun(
    words: list[str], environ: dict[str, str], argv: list[str], tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("work")
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    assert list(plan_for(tuple(words), environ).argv) == argv


@pytest.mark.parametrize(
    ("environ", "more"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "", "SLIPWAY_DEVICE": "cpu", "SLIPWAY_BACKEND": "gloo", "OMP_NUM_THREADS": "2"}),
        ({"NPROC_PER_NODE": "1"}, {"OMP_NUM_THREADS": "4"}),
        (PER_PROCESS, {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}),
        (PER_PROCESS, {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}),
        (
            TWO_TASKS_PER_NODE | ENROOT_TASKS,
            {"RANK": "3", "WORLD_SIZE": "4", "OMP_NUM_THREADS": "2", "MASTER_ADDR": "gpu07"},
        ),
    ],
)
def test_the_environment_of_the_workers(environ: dict[str, str], more: dict[str, str]) -> None:
    made = plan_for(environ=environ)
    assert {name: made.env[name] for name in more} == more


def test_with_gpus_their_choice_is_left_to_torch() -> None:
    made = plan_for(devices=make_devices(2))
    assert "CUDA_VISIBLE_DEVICES" not in made.env
    assert (made.env["SLIPWAY_DEVICE"], made.env["SLIPWAY_BACKEND"]) == ("cuda", "nccl")


@pytest.mark.parametrize(
    "environ", [TRAINER | {"PET_STANDALONE": "1"}, PYTORCHJOB_NEW, PLAIN | {"NNODES": "2", "NODE_RANK": "1"}]
)
def test_names_that_torchrun_would_misread_are_removed(environ: dict[str, str]) -> None:
    made = plan_for(environ=environ)
    left = made.environment(environ | {"PATH": "/bin"})
    wrong = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    assert [name for name in left if name.startswith("PET_") or name in wrong] == []
    assert left["PATH"] == "/bin"
    assert set(made.unset) <= set(environ)


def test_the_launchers_secret_does_not_reach_the_workers() -> None:
    secret = {"SLIPWAY_TOKEN": "0123456789abcdef"}
    assert "SLIPWAY_TOKEN" not in plan_for(environ=secret).environment(secret)


def test_the_users_own_threads_stay() -> None:
    environ = {"OMP_NUM_THREADS": "3"}
    made = plan_for(environ=environ)
    assert "OMP_NUM_THREADS" not in made.env
    assert made.environment(environ)["OMP_NUM_THREADS"] == "3"


def test_the_file_fills_names_that_are_unset_and_leaves_settings_to_the_launcher() -> None:
    file = {
        "HF_HOME": "/data/hf", "WANDB_MODE": "offline", "SLIPWAY_RUNS": "/runs", "RANK": "0", "PET_STANDALONE": "1",
    }  # fmt: skip
    made = plan_for(environ={"WANDB_MODE": "online"}, env_file=file)
    assert {name: made.env.get(name) for name in file} == {
        "HF_HOME": "/data/hf", "WANDB_MODE": None, "SLIPWAY_RUNS": None, "RANK": None, "PET_STANDALONE": None,
    }  # fmt: skip


def test_what_the_host_lacks_is_added() -> None:
    assert plan_for(mended={"USER": "uid-12345"}).env["USER"] == "uid-12345"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("SLIPWAY_TOKEN", True), ("WANDB_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True), ("PGPASSWORD", True), ("GOOGLE_APPLICATION_CREDENTIALS", True), ("hf_token", True),
        ("MASTER_ADDR", False), ("KEYBOARD", False), ("MONKEY_ISLAND", False), ("OMP_NUM_THREADS", False),
    ],
)  # fmt: skip
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert redact(name, "value") == ("***" if secret else "value")
    assert redact(name, "") == ""


def test_no_secret_is_printed() -> None:
    environ, file = {"SLIPWAY_TOKEN": "hunter2"}, {"HF_TOKEN": "hunter3", "SLIPWAY_TOKEN": "hunter4"}
    made = plan_for(environ=environ, env_file=file)
    values = resolved_values(made.topology, make_sources(environ, env_file=file))
    lines = [*plan_lines(made, values, []), json.dumps(plan_json(made, values, {}))]
    assert [line for line in lines if "hunter" in line] == []
    assert [line for line in lines if "SLIPWAY_TOKEN" in line and "***" in line]
    assert made.env["HF_TOKEN"] == "hunter3"


def test_every_setting_has_a_value_and_a_source_in_the_order_of_the_table() -> None:
    sources = make_sources({"SLIPWAY_RUNS": "/a"}, {"SLIPWAY_RUNS": "/b"})
    values = resolved_values(plan_for().topology, sources)
    assert list(values) == [setting.name for setting in SETTINGS]
    assert values["SLIPWAY_RUNS"].source == "command line (--runs)"
    assert [claim.value for claim in values["SLIPWAY_RUNS"].overruled] == ["/a"]
    assert set(TOPOLOGICAL) <= set(values)


@pytest.mark.parametrize(
    ("environ", "interface"),
    [
        ({}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "eth7"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, None),  # the muster knows
    ],
)
def test_a_single_node_talks_to_itself_without_asking_for_its_name(
    environ: dict[str, str], interface: str | None
) -> None:
    assert plan_for(environ=environ).env.get("GLOO_SOCKET_IFNAME") == interface


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ({"TORCH_FR_BUFFER_SIZE": "5"}, {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "x"}, {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {"TORCH_FR_DUMP_TEMP_FILE"}),
    ],
)
def test_nccl_leaves_a_record_unless_the_user_decided_otherwise(environ: dict[str, str], names: set[str]) -> None:
    told = flight_recorder(environ, "node-0/logs/nccl-rank-")
    assert set(told) == names
    assert told.get("TORCH_FR_DUMP_TEMP_FILE", "node-0/logs/nccl-rank-") == "node-0/logs/nccl-rank-"
