"""Jobs whose time is over: with an early signal they save and requeue themselves until they are done, without one they save."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster, Job
from jobs import PACED, SLIPWAY, newest_step, outcome, run_of, steps_made, train

from slipway.protocol.files import list_snapshots

STEP = 0.25  # s
ONE = {"NPROC_PER_NODE": "1"}  # as little as can be is imported in each of the minutes
FIVE_MINUTES = (PACED, "--batch-size", "8", "--eval-every", "1000", "--steps", str(int(300 / STEP)))


@pytest.fixture(scope="module")
def five_minutes(cluster: Cluster) -> Job:
    """A job that needs five minutes, in allocations of one."""
    options = ("--partition=slow", "--time=1", "--signal=USR1@1")
    return train(cluster, *FIVE_MINUTES, options=options, PACE=str(STEP), **ONE)


@pytest.fixture(scope="module")
def overtime(cluster: Cluster, five_minutes: Job) -> Job:
    """The same, beside it, but nobody tells it early that its minute is over."""
    options = ("--partition=slow", "--time=1", "--signal=CONT@1")
    return train(cluster, *FIVE_MINUTES, options=options, PACE=str(STEP), **ONE)


def weights(run: Path) -> str:
    """The hash of the model in the newest snapshot."""
    newest = list_snapshots(run / "snapshots")[0]
    return str(json.loads((newest / "manifest.json").read_text())["files"]["model.safetensors"]["sha256"])


def test_a_time_limit_that_nobody_foresaw_leaves_a_snapshot(overtime: Job) -> None:
    assert overtime.end() == "TIMEOUT"
    overtime.cluster.wait(lambda: outcome(overtime).get("word") == "stopped", "the verdict", overtime)
    assert newest_step(overtime) > 50
    assert "requeueing" not in overtime.text
    assert overtime.fact("Restarts") == "0"


@pytest.mark.timeout(1500)
def test_five_minutes_of_training_with_a_limit_of_one(five_minutes: Job, tmp_path: Path) -> None:
    words = [SLIPWAY, "run", "--run-dir", str(tmp_path / "run"), *FIVE_MINUTES]
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(words, cwd=tmp_path, env=kept | ONE, capture_output=True, text=True)
    assert not done.returncode, done.stderr

    assert five_minutes.end(patience=1400) == "COMPLETED", five_minutes.text
    restarts = int(five_minutes.fact("Restarts"))
    assert restarts, "no allocation lasts as long as the training"
    assert (
        five_minutes.text.count("train.sbatch: requeueing: the job was stopped and its snapshot is saved") == restarts
    )
    steps = steps_made(five_minutes)
    assert steps == sorted(set(steps))  # none twice
    assert newest_step(five_minutes) == int(FIVE_MINUTES[-1])
    assert weights(run_of(five_minutes)) == weights(tmp_path / "run")
