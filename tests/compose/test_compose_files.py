"""What `docker compose` reads in the files, in all combinations; nothing is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from compose_projects import CPU, ONE_NODE, ROOT, TWO_NODES, Project

from slipway.launch.resolve.settings import BY_NAME

pytestmark = pytest.mark.core

each_combination = pytest.mark.parametrize("files", [ONE_NODE, CPU, TWO_NODES])


def read_config(project: Project, *words: str, **shell: Any) -> dict[str, Any]:
    """What compose makes of the files, TensorBoard included."""
    config: dict[str, Any] = json.loads(project(*words, "--profile", "tensorboard", "config", "--format=json", **shell))
    return config


def read_nodes(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that train."""
    return {name: service for name, service in config["services"].items() if name != "tensorboard"}


@pytest.mark.parametrize("file", [ONE_NODE, TWO_NODES])
def test_the_project_is_called_slipway_wherever_the_checkout_lies(file: str) -> None:
    assert "\nname: slipway\n" in (ROOT / file).read_text(encoding="utf-8")


@each_combination
def test_only_tensorboard_publishes_a_port_and_to_this_machine_only(
    project: Callable[..., Project], files: str
) -> None:
    config = read_config(project(COMPOSE_FILE=files, TENSORBOARD_PORT="7007"))
    ports = {name: service.get("ports", []) for name, service in config["services"].items()}
    (shown,) = ports.pop("tensorboard")
    assert (shown["host_ip"], shown["published"], shown["target"]) == ("127.0.0.1", "7007", 7007)
    assert not any(ports.values())
    assert not any(service.get("network_mode") for service in config["services"].values())


@each_combination
def test_a_node_has_time_to_save_memory_to_share_and_a_place_for_what_it_makes(
    project: Callable[..., Project], files: str
) -> None:
    config = read_config(project(COMPOSE_FILE=files))
    minutes, seconds = divmod(int(BY_NAME["SLIPWAY_GRACE_SECONDS"].default) + 10, 60)
    for node in read_nodes(config).values():
        assert node["stop_grace_period"] == f"{minutes}m{seconds}s"
        assert node["shm_size"] == str(1 << 30)
        assert node["restart"] == "on-failure:3"
        assert {(mount["type"], mount["target"]) for mount in node["volumes"]} == {
            ("volume", "/checkpoints"),
            ("volume", "/data"),
        }
    assert set(config["volumes"]) == {"checkpoints", "data"}


@each_combination
def test_every_service_is_locked_down_and_tensorboard_reads_only(project: Callable[..., Project], files: str) -> None:
    services = read_config(project(COMPOSE_FILE=files))["services"]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.get("privileged")
    assert services["tensorboard"]["read_only"]
    assert [(mount["target"], mount["read_only"]) for mount in services["tensorboard"]["volumes"]] == [
        ("/checkpoints", True)
    ]


@pytest.mark.parametrize(("files", "count"), [(ONE_NODE, -1), (CPU, None), (TWO_NODES, None)])
def test_all_gpus_are_asked_for_and_none_where_there_may_be_none(
    project: Callable[..., Project], files: str, count: int | None
) -> None:
    for name, service in read_config(project(COMPOSE_FILE=files))["services"].items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert [device["count"] for device in devices] == ([count] if count and name == "train" else [])
        assert service["environment"].get("NVIDIA_VISIBLE_DEVICES") == (None if devices else "void")


@each_combination
def test_what_the_env_file_says_reaches_every_node(project: Callable[..., Project], files: str) -> None:
    words = "gpt --preset tiny  --sample-prompt a#b"
    made = project(COMPOSE_FILE=files, WORKLOAD=words, NCCL_DEBUG="INFO", SLIPWAY_RESUME="none", IMAGE="other:1")
    config = read_config(made)
    assert {service["image"] for service in config["services"].values()} == {"other:1"}
    for node in read_nodes(config).values():
        told = node["environment"]
        assert (told["WORKLOAD"], told["NCCL_DEBUG"], told["SLIPWAY_RESUME"]) == (words, "INFO", "none")
    assert "NCCL_DEBUG" not in config["services"]["tensorboard"]["environment"]


@each_combination
def test_the_shell_beats_the_env_file(project: Callable[..., Project], files: str) -> None:
    config = read_config(project(COMPOSE_FILE=files, WORKLOAD="gpt"), WORKLOAD="linear --steps 5")
    assert {node["environment"]["WORKLOAD"] for node in read_nodes(config).values()} == {"linear --steps 5"}


def test_the_env_file_counts_where_a_file_is_named_too(project: Callable[..., Project]) -> None:
    config = read_config(project(WORKLOAD="linear", IMAGE="other:1"), "--file", ONE_NODE)
    train = config["services"]["train"]
    assert (train["environment"]["WORKLOAD"], train["image"]) == ("linear", "other:1")


@each_combination
def test_nothing_has_to_be_set(project: Callable[..., Project], files: str) -> None:
    made = project()
    (made.root / ".env").unlink()
    config = read_config(made, *(word for file in files.split(":") for word in ("--file", file)))
    assert {service["image"] for service in config["services"].values()} == {"slipway:dev"}
    for node in read_nodes(config).values():
        assert node["environment"]["SLIPWAY_RESUME"] == "auto"
        assert node["environment"]["WORKLOAD"] == ""


def test_two_nodes_have_ranks_of_their_own_whatever_the_env_file_says(project: Callable[..., Project]) -> None:
    made = project(COMPOSE_FILE=TWO_NODES, RANK="7", WORLD_SIZE="8", MASTER_ADDR="elsewhere", MASTER_PORT="29600")
    told = {name: node["environment"] for name, node in read_nodes(read_config(made)).items()}
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert {node: [values[name] for name in names] for node, values in told.items()} == {
        "node0": ["0", "2", "node0", "29600"],
        "node1": ["1", "2", "node0", "29600"],
    }


def test_the_readme_beside_the_files_names_them_all() -> None:
    told = (ROOT / "compose/README.md").read_text(encoding="utf-8")
    assert [file.name for file in sorted((ROOT / "compose").glob("*.yaml")) if f"`{file.name}`" not in told] == []
