"""What a newcomer does first: train the tiny GPT, read what it says, continue a text, look at the plan."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher

Run = Callable[..., Launcher]


@pytest.mark.core
def test_the_default_run_trains_a_gpt_and_says_what_to_try_next(slipway: Run, tmp_path: Path) -> None:
    job = slipway("run", WORKLOAD="gpt --preset tiny --steps 40 --eval-every 20 --sample-tokens 40")
    assert job.end() == 0, job.text
    assert "no GPU visible (no NVIDIA driver), training on CPU" in job.text
    assert "nats per byte" in job.text
    assert "bits per byte" in job.text
    run = next(tmp_path.glob("runs/gpt-*"))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == 40
    assert metrics[-1]["val_loss"] < 5.55  # uniform over bytes
    record = json.loads((run / "run.json").read_text())
    assert (record["workload"], record["nodes"], record["processes_per_node"]) == ("gpt", 1, 2)
    assert f"runs/{run.name}" in "\n".join(job.closing)
    commands = [line.partition("next: ")[2] for line in job.closing if "next: " in line]
    assert len(commands) == 3
    assert "slipway report" in commands[0]
    again = slipway(*_words(commands[1]), "--tokens", "20")
    assert again.end() == 0, again.text
    assert again.text.startswith("def ")


def _words(command: str) -> list[str]:
    words = shlex.split(command)
    return words[[Path(word).name for word in words].index("slipway") + 1 :]


def test_sampling_from_what_is_no_gpt_run_says_so(slipway: Run, tmp_path: Path) -> None:
    assert slipway("linear", "--epochs", "1", "--run-dir", "mine").end() == 0
    job = slipway("sample", "mine")
    assert job.end() == 78, job.text
    assert "only gpt, finetune, pipeline write text" in job.text
    (tmp_path / "empty").mkdir()
    job = slipway("sample", "empty")
    assert job.end() == 78, job.text
    assert "holds no snapshot" in job.text


def test_the_plan_can_be_pasted_into_a_shell(slipway: Run, tmp_path: Path) -> None:
    plan = slipway("plan", "--json", "linear", "--epochs", "1").text
    made = json.loads(plan)["torchrun"]
    folder = tmp_path / "by-hand"
    (folder / "node-0" / "outcome").mkdir(parents=True)
    environ = {**os.environ, **made["env"], "SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder / "node-0")}
    torchrun = [str(Path(sys.executable).with_name(made["argv"][0])), *made["argv"][1:]]
    done = subprocess.run(torchrun, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.pull
def test_two_nodes_are_shown_the_interface_that_they_will_use(slipway: Run) -> None:
    words = ("plan", "--json", "linear")
    made = json.loads(slipway(*words, WORLD_SIZE="2", RANK="0", MASTER_ADDR="127.0.0.1").text)["torchrun"]
    assert (made["env"]["GLOO_SOCKET_IFNAME"], made["env"]["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    mine = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "ib0"}
    assert "GLOO_SOCKET_IFNAME" not in json.loads(slipway(*words, **mine).text)["torchrun"]["env"]
