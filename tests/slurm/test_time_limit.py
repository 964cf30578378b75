"""Jobs whose time is over: with an early signal they save and requeue themselves until they are done, without one they save.

The limit comes when the job has made some steps, however long these took: an hour at first, then it is set to the real one.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster, Job
from jobs import PACED, SLIPWAY, newest_step, outcome, run_of, steps_made, train, wait_for_step

from slipway.protocol.snapshots import list_snapshots

ONE = {"NPROC_PER_NODE": "1"}  # as little as can be is imported after each start
WORDS = (PACED, "--batch-size", "8", "--eval-every", "1000", "--log-every", "5", "--steps", "600")
WARNED = 330  # s before the limit
SOON = 5  # minutes, less than WARNED: Slurm, which looks every 30 s, tells the job at once


def start(cluster: Cluster, *signal: str) -> Job:
    """A job with two and a half minutes of steps."""
    return train(cluster, *WORDS, options=("--partition=slow", "--time=60", *signal), PACE="0.25", **ONE)


def limit(job: Job, minutes: int) -> None:
    """Set the limit of a job's time."""
    job.cluster.command("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")


def weights(run: Path) -> str:
    """The hash of the model in the newest snapshot."""
    newest = list_snapshots(run / "snapshots")[0]
    return str(json.loads((newest / "manifest.json").read_text())["files"]["model.safetensors"]["sha256"])


def test_a_time_limit_that_nobody_foresaw_leaves_a_snapshot(cluster: Cluster) -> None:
    overtime = start(cluster, "--signal=CONT@1")
    wait_for_step(overtime, 50)
    limit(overtime, 1)
    assert overtime.end() == "TIMEOUT"
    cluster.wait(lambda: outcome(overtime).get("word") == "stopped", "the verdict", overtime)
    assert newest_step(overtime) >= 50
    assert "requeueing" not in overtime.text
    assert overtime.fact("Restarts") == "0"


@pytest.mark.timeout(1500)
def test_training_that_is_longer_than_its_limit_goes_on_in_the_next_allocation(
    cluster: Cluster, tmp_path: Path
) -> None:
    warned, reached = start(cluster, f"--signal=USR1@{WARNED}"), 0
    told = "train.sbatch: requeueing: the job was stopped and its snapshot is saved"
    for restarts in (1, 2):
        wait_for_step(warned, reached + 20)
        hours, minutes, _ = warned.fact("RunTime").split(":")
        limit(warned, 60 * int(hours) + int(minutes) + SOON)
        warned.wait_for(f"(?s)({told}.*){{{restarts}}}")
        limit(warned, 60)  # before it starts again
        reached = newest_step(warned)
    words = [SLIPWAY, "run", "--run-dir", str(tmp_path / "run"), *WORDS]
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(words, cwd=tmp_path, env=kept | ONE, capture_output=True, text=True)
    assert not done.returncode, done.stderr

    assert warned.end() == "COMPLETED", warned.text
    assert warned.fact("Restarts") == str(warned.text.count(told))
    steps = steps_made(warned)
    assert steps == sorted(set(steps))  # none twice
    assert newest_step(warned) == int(WORDS[-1])
    assert weights(run_of(warned)) == weights(tmp_path / "run")
