"""What `slipway render compose` prints, read by Compose beside the files of the checkout, and started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compose_projects import CPU, ENVIRON, IMAGE, ONE_NODE, Project

RENDERED = "rendered.yaml"


def render(project: Project, *words: str, **shell: str) -> None:
    """Write the rendered file into the project's folder. Keywords are variables of the shell."""
    command = [Path(sys.executable).with_name("slipway"), "render", "compose", "--image", IMAGE, *words]
    done = subprocess.run(command, cwd=project.root, env=ENVIRON | shell, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    (project.root / RENDERED).write_bytes(done.stdout)


def read_services(project: Project, files: str, **shell: str) -> dict[str, dict[str, Any]]:
    """What Compose makes of the files; an empty variable counts as unset."""
    found = json.loads(project("--profile", "tensorboard", "config", "--format=json", COMPOSE_FILE=files, **shell))
    for service in found["services"].values():
        service["environment"] = {
            name: value for name, value in service["environment"].items() if value and "COMPOSE_" not in name
        }
    return {"volumes": found["volumes"], **found["services"]}


@pytest.mark.parametrize(("files", "words"), [(ONE_NODE, []), (CPU, ["--gpus", "0"])])
def test_it_says_what_the_files_of_the_checkout_say(
    project: Callable[..., Project], files: str, words: list[str]
) -> None:
    made = project(NCCL_DEBUG="INFO", SLIPWAY_TOKEN="hunter2hunter2", TENSORBOARD_PORT="7007")
    render(made, *words)
    expected = read_services(made, files)
    expected["train"]["command"] = ["run"]  # as the image's CMD says
    assert read_services(made, RENDERED) == expected


def test_compose_reads_every_word_as_it_was_typed(project: Callable[..., Project]) -> None:
    made = project()
    nasty = [
        "a b",
        "it's",
        "$HOME",
        "${X:?}",
        "",
        "\\",
        "a\nb",
        "\x07",
        "a\x85b",
        "# ü",
        "-",
        "y",
        "1e-3",
        "0o17",
        "12",
        ": a",
    ]
    (made.root / "train.py").touch()
    render(made, "--run-dir", "/checkpoints/$HOME", "train.py", *nasty)
    train = read_services(made, RENDERED)["train"]
    # What it prints is a compose file again, with each $ doubled.
    assert [word.replace("$$", "$") for word in train["command"]] == ["run", "train.py", *nasty]
    assert train["environment"]["SLIPWAY_RUN_DIR"] == "/checkpoints/$$HOME"
    assert [mount["source"] for mount in train["volumes"] if mount["target"] == "/workspace"] == [str(made.root)]


def test_a_secret_comes_from_the_shell(project: Callable[..., Project]) -> None:
    made = project()
    render(made, "gpt", SLIPWAY_TOKEN="hunter2hunter2")
    assert "hunter2" not in (made.root / RENDERED).read_text(encoding="utf-8")
    assert "SLIPWAY_TOKEN" not in read_services(made, RENDERED)["train"]["environment"]
    told = read_services(made, RENDERED, SLIPWAY_TOKEN="another one")["train"]["environment"]
    assert told["SLIPWAY_TOKEN"] == "another one"


@pytest.mark.core
def test_up_trains_to_the_end(project: Callable[..., Project]) -> None:
    made = project(COMPOSE_FILE=RENDERED)
    render(made, "--gpus", "0", "linear", "--steps", "20")
    assert "finished on 1 node: 20 steps" in made("up")
    assert made.container("train")["State"]["ExitCode"] == 0
