"""A run seen from other shells: its status, a request to stop it, and a second start in its directory. Without torch."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import wait_until

from slipway.process.tree import state_of

Run = Callable[..., Launcher]
ENDLESS = ("gpt", "--preset", "tiny", "--steps", "100000", "--log-every", "1", "--run-dir", "runs/mine")


WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(300)"


@pytest.fixture
def waiting(start: Run, rules: Rules, tmp_path: Path) -> Launcher:
    """A script that waits for its end, in runs/mine."""
    (tmp_path / "wait.py").write_text(WAITS)
    job = start("run", "--run-dir", "runs/mine", "wait.py", NPROC_PER_NODE="1", **rules.variables())
    job.wait_for("ready")
    return job


def read_json(job: Launcher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.text)
    return found


@pytest.mark.core
def test_a_run_is_stopped_for_good_from_another_shell(start: Run, slipway: Run, rules: Rules, tmp_path: Path) -> None:
    held = Rule("hold")
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(held))
    rules.wait_for(held, job)
    shown = read_json(slipway("status", "--json"))
    assert shown["alive"] is True
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
    assert all(rank["phase"] and rank["age"] < 60 for rank in shown["ranks"])
    stopping = start("stop", "mine", "--wait")
    job.wait_for("`slipway stop` received")
    rules.let_go(held)
    assert stopping.end() == 0, stopping.text
    assert job.end() == 79, job.text
    assert any("`slipway stop`" in line for line in job.closing)
    assert "cancelled by the user" in stopping.text
    assert len(list(tmp_path.glob("runs/mine/snapshots/step-*"))) == 1
    again = slipway("stop", "runs/mine")
    assert again.end() == 78, again.text
    assert "ended with exit code 79" in again.text
    assert "cancelled by the user" in slipway("status").text
    assert read_json(slipway("status", "mine", "--json"))["outcome"]["code"] == 79


@pytest.mark.pull
@pytest.mark.needs("process namespaces")
def test_workers_of_a_frozen_launcher_write_nothing_once_another_went_on_with_the_run(
    start: Run, rules: Rules, tmp_path: Path
) -> None:
    held = Rule("hold", step=12)
    # A worker that prints would wait for its launcher to read.
    words, more = (*ENDLESS, "--save-every", "5", "--log-every", "100000"), {"NPROC_PER_NODE": "1"}
    frozen = start(*words, SLIPWAY_MAX_RESTARTS="0", **more, **rules.variables(held))
    rules.wait_for(held, frozen)
    worker = json.loads((tmp_path / "runs/mine/node-0/heartbeat/rank-0.json").read_text())["pid"]
    frozen.signal(signal.SIGSTOP)
    rules.let_go(held)
    try:
        elsewhere = (
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        )  # from where the first cannot be seen
        other = start(*words, "--resume", "auto", before=elsewhere, **more, **rules.variables())
        other.wait_for("resuming from")
        wait_until(lambda: state_of(worker) in ("", "Z"), "the frozen launcher's worker to end")
        (tmp_path / "runs/mine/stop").touch()
        assert other.end() == 75, other.text
    finally:
        frozen.signal(signal.SIGCONT)
    assert frozen.end() != 0, frozen.text


@pytest.mark.pull
@pytest.mark.needs("process namespaces")
def test_a_launcher_may_be_process_1_of_a_container(
    slipway: Run, waiting: Launcher, rules: Rules, tmp_path: Path
) -> None:
    """Kubernetes' `command` replaces the image's entry point. And whoever is in another container is seen from there."""
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    (tmp_path / "own.py").write_text("import os\nprint('parents', os.getppid() > 1, flush=True)")
    job = slipway("own.py", before=apart, NPROC_PER_NODE="1", **rules.variables())
    assert job.end() == 0, job.text
    assert "parents True" in job.text
    second = slipway("run", "--run-dir", "runs/mine", "--resume", "auto", "own.py", before=apart)
    assert second.end() == 78, second.text
    assert f"is in use by the launcher with process id {waiting.process.pid}" in second.text


# The failure of one node ends what runs on the other: rank 1 waits until rank 0 has printed.
SHOWS = """
import os, time
print("shared", os.environ["SLIPWAY_SHARED_RUN_DIR"], flush=True)
rank, printed = int(os.environ["RANK"]), f"printed-{os.environ['SLIPWAY_ATTEMPT']}"
if rank == 0:
    open(printed, "w").close()
while not os.path.exists(printed):
    time.sleep(0.01)
os._exit(rank)
"""


@pytest.mark.pull
def test_nodes_without_a_shared_run_directory_tell_their_workers_and_are_started_again_together(
    node: Run, rules: Rules, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SHOWS)
    words, more = ("run", "--max-restarts", "1", "own.py"), rules.variables(pause=0.1)
    jobs = [node(rank, 2, *words, SLIPWAY_RUNS=f"disk-{rank}", **more) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [1, 1], jobs[0].text + jobs[1].text
    for job in jobs:
        assert job.text.count("shared 0") == 2
        assert job.text.count("run directory disk-") == 2
        assert any("restarts    1: --max-restarts 1" in line for line in job.closing), job.closing
