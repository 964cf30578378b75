"""The contract at the container's door: options, `-e`, `--env-file` and a mounted `.env`, in this order."""

import json
import secrets
from pathlib import Path

import pytest
from containers import Containers

CONTRACT = {
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "29600",
    "RANK": "1",
    "WORLD_SIZE": "3",
    "NPROC_PER_NODE": "2",
    "WORKLOAD": "linear --epochs 2",
}


def mounted(folder: Path, name: str = ".env", **values: str) -> Path:
    """Write a file of settings."""
    path = folder / name
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("way", "source"),
    [
        (" ".join(f"-e '{name}={value}'" for name, value in CONTRACT.items()), "environment"),
        ("--env-file {file}", "environment"),
        ("--volume {file}:/workspace/.env:ro", ".env"),
        ("--volume {file}:/mine/job.env:ro", "job.env"),
    ],
    ids=["-e", "--env-file", "/workspace/.env", "slipway's --env-file"],
)
def test_every_way_sets_the_whole_contract(container: Containers, tmp_path: Path, way: str, source: str) -> None:
    words = "plan --json --env-file /mine/job.env" if source == "job.env" else "plan --json"
    line = f"{way.format(file=mounted(tmp_path, **CONTRACT))} IMG {words}"
    plan = json.loads(container(line).stdout)
    found = {name: (plan["values"][name]["value"], plan["values"][name]["source"]) for name in CONTRACT}
    assert found == {name: (value, f"{source} ({name})") for name, value in CONTRACT.items()}
    assert plan["torchrun"]["argv"][-3:] == ["slipway.train.workloads.linear", "--epochs", "2"]
    assert "--node-rank=1" in plan["torchrun"]["argv"]


OPTION, VARIABLE, ENV_FILE, MOUNTED = (
    "--nnodes 5",
    "-e WORLD_SIZE=4",
    "--env-file {env_file}",
    "--volume {dotenv}:/workspace/.env:ro",
)


@pytest.mark.core
@pytest.mark.parametrize(
    ("docker", "words", "winner"),
    [
        ((VARIABLE, ENV_FILE, MOUNTED), OPTION, ("5", "command line (--nnodes)")),
        ((VARIABLE, ENV_FILE, MOUNTED), "", ("4", "environment (WORLD_SIZE)")),
        ((ENV_FILE, VARIABLE), "", ("4", "environment (WORLD_SIZE)")),
        ((ENV_FILE, MOUNTED), "", ("3", "environment (WORLD_SIZE)")),
        (("-e WORLD_SIZE=", MOUNTED), "", ("2", ".env (WORLD_SIZE)")),
        ((), "", ("1", "default")),
    ],
    ids=["option", "-e", "-e behind --env-file", "--env-file", "an empty -e is unset", "nothing"],
)
def test_the_nearer_one_wins(
    container: Containers, tmp_path: Path, docker: tuple[str, ...], words: str, winner: tuple[str, str]
) -> None:
    files = {
        "env_file": mounted(tmp_path, "env-file", WORLD_SIZE="3"),
        "dotenv": mounted(tmp_path, WORLD_SIZE="2"),
    }
    options = " ".join(docker).format(**files)
    found = json.loads(container(f"{options} -e MASTER_ADDR=elsewhere IMG plan --json {words}").stdout)["values"]
    assert (found["WORLD_SIZE"]["value"], found["WORLD_SIZE"]["source"]) == winner


def test_a_secret_in_a_mounted_env_file_is_in_no_log_and_no_file_of_the_run(
    container: Containers, tmp_path: Path, runs: Path
) -> None:
    canary = secrets.token_hex(16)
    file = mounted(tmp_path, SLIPWAY_TOKEN=canary, HF_TOKEN=canary, NPROC_PER_NODE="1")
    options = f"--shm-size 1g --volume {runs}:/checkpoints --volume {file}:/workspace/.env:ro"
    planned = container(f"{options} IMG plan")
    trained = container(f"{options} IMG linear --epochs 1")
    assert "***" in planned.text, "the secret was read"
    assert "1 node × 1 CPU process" in trained.text, "the file was read"
    assert canary not in planned.text + trained.text
    kept = [path for path in runs.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if canary.encode() in path.read_bytes()]
