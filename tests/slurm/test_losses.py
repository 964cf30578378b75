"""What a cluster loses: a launcher, a node's daemon, a node. The job goes on from its newest snapshot."""

import re
from pathlib import Path

import pytest
from cluster import Cluster, Job
from jobs import LINEAR, attempt, newest_step, outcome, stand_in, train, train_long, wait_for_step

STEPS = 150


def started(cluster: Cluster) -> Job:
    """A job of two nodes that has a snapshot of step 25."""
    job = train_long(cluster, STEPS)
    wait_for_step(job, 30)
    return job


def went_on(job: Job) -> None:
    """The job was put back into the queue, went on from its snapshot and finished."""
    assert job.end() == "COMPLETED", job.text
    assert "finished on 2 nodes" in job.text
    assert re.search(r"resuming from .*/step-00000[01]\d\d", job.text), job.text
    assert attempt(job) == 2
    assert newest_step(job) == STEPS


def test_a_killed_launcher_ends_the_others_and_the_job_requeues_itself(cluster: Cluster) -> None:
    job = started(cluster)
    cluster.on("node2", "pkill", "--signal", "KILL", "--oldest", "--full", "bin/slipway run")
    job.wait_for("train.sbatch: requeueing: a node or a launcher was lost")
    assert "a node was lost: node 1" in job.text
    assert "Slurm cannot restart a task of a step" in job.text
    went_on(job)


def test_a_node_that_fails_ends_the_job_and_slurm_requeues_it(cluster: Cluster) -> None:
    job = started(cluster)
    with cluster.without("node2", lambda: cluster.hosts.power_off("node2")):
        job.wait_for("a node was lost: node 1")
        cluster.wait(lambda: job.state == "PENDING", "the requeue", job)
    went_on(job)


def test_a_killed_slurmd_harms_no_job_until_slurm_gives_its_node_up(cluster: Cluster) -> None:
    job = started(cluster)
    with cluster.without("node2", lambda: cluster.on("node2", "pkill", "--signal", "KILL", "--exact", "slurmd")):
        wait_for_step(job, 60)
        # As after SlurmdTimeout, which is 300 s on real clusters. Nobody can end the launcher on node 1 but the one on node 0.
        cluster.command("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
        cluster.wait(lambda: outcome(job).get("word") == "stopped", "the verdict", job)
        assert newest_step(job) >= 60
    went_on(job)


# What pyxis and enroot do on a node whose disk is full: the task ends before the container runs anything.
NO_CONTAINER = """
if [[ $SLURMD_NODENAME == node2 ]]; then
    echo 'slurmstepd: error: pyxis:     Write on output file failed because No space left on device' >&2
    echo "slurmstepd: error: pyxis: couldn't start container" >&2
    exit 1
fi
exec "$@"
"""
SRUN = """#!/bin/bash
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
exec /usr/bin/srun "${options[@]}" bash -c "$NO_CONTAINER" bash "$@"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with an srun that starts no container on node2."""
    program = tmp_path / "path/srun"
    program.parent.mkdir()
    program.write_text(SRUN)
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin:/usr/sbin:/sbin"


def test_a_node_that_cannot_start_containers_ends_the_step_and_is_left_out(cluster: Cluster, path: str) -> None:
    options = ("--nodes=2", "--partition=three")
    job = train(cluster, *LINEAR, options=options, PATH=path, NO_CONTAINER=NO_CONTAINER)
    assert job.end() == "COMPLETED", job.text
    first, _, second = job.text.partition("train.sbatch: requeueing: ")
    assert "no launcher started on node2, without which the others cannot begin" in first, job.text
    assert "No space left on device" in first.partition("It was reported:")[2]
    assert "finished" not in first
    assert "this job will not use node2 again" in second
    assert "finished on 2 nodes" in second
    assert (job.fact("Restarts"), job.fact("ExcNodeList")) == ("1", "node2")


def test_a_node_that_cannot_start_containers_and_cannot_be_left_out_does_not_loop_the_job(
    cluster: Cluster, tmp_path: Path, path: str
) -> None:
    job = train(cluster, VENV=stand_in(tmp_path, "exit 76"), PATH=path, NO_CONTAINER=NO_CONTAINER)
    job.wait_for("not requeued: ")
    assert job.end() == "FAILED", job.text
    assert job.text.count("requeueing: a node or a launcher was lost") == 3
    assert job.text.count("no launcher started on node2; ") == 4
    assert job.text.count("node2 may be used again") == 3
    assert "3 requeues in a row brought no new snapshot. Submit again with --exclude=node2" in job.text
    assert job.fact("ExitCode") == "76:0"
