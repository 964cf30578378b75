"""`--launcher spawn`: torch.multiprocessing instead of torchrun, with the same weights and the same endings."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from safetensors.torch import load_file
from waiting import PATIENCE, wait_until

from slipway.process.tree import lives

Run = Callable[..., Launcher]
RUNS = ("spawned", "torchrun")
SPAWN = ("linear", "--launcher", "spawn", "--run-dir", "spawned")
ENDLESS = ("--steps", "1000000", "--log-every", "1")


def test_torchrun_and_spawn_reach_the_same_weights(slipway: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MASTER_ADDR=localhost\n")
    size = ("--dataset-size", "512", "--epochs", "2", "--batch-size", "24")
    job = slipway(*SPAWN, "--world-size", "3", *size)
    assert job.end() == 0, job.text
    assert "1 node × 3 CPU processes = 3 processes" in job.text
    other = slipway("linear", "--run-dir", "torchrun", "--nproc-per-node", "3", *size)
    assert other.end() == 0, other.text
    one, another = (load_file(next(tmp_path.glob(f"{run}/snapshots/*/model.safetensors"))) for run in RUNS)
    assert all(one[name].equal(another[name]) for name in one.keys() | another.keys())
    logs = {log.name for log in tmp_path.glob("spawned/node-0/logs/*")}
    assert logs == {"rank-0.log", "rank-1.log", "rank-2.log", "spawn.log"}
    first = (tmp_path / "spawned" / "node-0" / "logs" / "rank-0.log").read_text().splitlines()[1]
    assert first[25:].startswith("linear: "), "the time stands in front"


@pytest.mark.pull
def test_its_workers_say_where_they_stand_and_a_stop_saves_and_ends_with_75(start: Run, tmp_path: Path) -> None:
    job = start(*SPAWN, *ENDLESS)
    job.wait_for("step 3/")
    shown = subprocess.run(
        [sys.executable, "-m", "slipway", "stacks", "spawned"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert shown.returncode == 0, shown.stderr
    assert [line for line in shown.stdout.splitlines() if line.startswith("  rank 1 (node 0) is at ")], shown.stdout
    assert "has no watcher" not in shown.stdout
    for pid in workers(tmp_path):
        os.kill(pid, signal.SIGTERM)  # as some schedulers do; it is for the launcher to pass it on
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    assert len(list(tmp_path.glob("spawned/snapshots/step-*"))) == 1
    assert any("SIGTERM" in line for line in job.closing), job.closing


def test_a_worker_that_is_killed_is_named_and_nobody_stays_behind(start: Run, tmp_path: Path) -> None:
    job = start(*SPAWN, *ENDLESS, "--max-restarts", "0")
    job.wait_for("step 3/")
    pids = workers(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    assert job.end() == 1, job.text
    assert any("rank 1" in line and "SIGKILL: somebody killed it" in line for line in job.closing), job.closing
    wait_until(lambda: not any(map(lives, pids)), "the workers to end")


def test_a_worker_that_fails_says_why(slipway: Run) -> None:
    job = slipway(*SPAWN, "--input-size", str(10**13))
    assert job.end() == 1, job.text
    assert any("can't allocate memory" in line for line in job.closing), job.closing
    assert any("failed before its first step" in line for line in job.closing), job.closing


def test_workers_end_with_their_launcher_even_when_it_is_killed(start: Run, tmp_path: Path) -> None:
    # An epoch of minutes, so that nothing is printed: whoever prints ends by the broken pipe, sooner or later.
    job = start(*SPAWN, "--epochs", "9", "--log-every", "1000000", "--dataset-size", "1000000", "--input-size", "2")
    wait_until(lambda: len(workers(tmp_path, "train")) == 2, lambda: f"both workers to train:\n{job.text}")
    pids = workers(tmp_path, "train")
    job.signal(signal.SIGKILL)
    job.end()
    wait_until(lambda: not any(map(lives, pids)), "the workers to end")


def workers(folder: Path, phase: str = "") -> list[int]:
    """The processes, by rank; where a phase is named, those that are in it."""
    beats = [json.loads(file.read_text()) for file in sorted(folder.glob("spawned/node-0/heartbeat/rank-*.json"))]
    return [beat["pid"] for beat in beats if phase in ("", beat["phase"])]
