"""What else a newcomer does first (test_newcomer.py): look at the plan."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher

Run = Callable[..., Launcher]


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
