"""A job of two nodes and a spare one, node3: a lost node is replaced without a requeue, but for the first one."""

from pathlib import Path

import pytest
from cluster import Cluster, Job
from jobs import LONG, SLIPWAY, VENV, attempt, newest_step, run_of, stand_in, train, train_long, wait_for_step

from slipway.launch.run_directory.directory import RunDirectory
from slipway.protocol.snapshots import list_snapshots

STEPS = 75
OPTIONS = ("--partition=three", "--nodes=3", "--no-kill")
Weights = dict[str, bytes]  # by the names of their files


def started(cluster: Cluster) -> Job:
    """A job that has a snapshot of step 25, and whose spare node is present."""
    job = train_long(cluster, STEPS, options=OPTIONS, SLIPWAY_SPARES="1", SLIPWAY_MAX_RESTARTS="3")
    wait_for_step(job, 30)
    cluster.wait(lambda: RunDirectory(run_of(job)).node(0).spares, "the spare node's record", job)
    return job


def kill_all(cluster: Cluster, node: str) -> None:
    """Kill a launcher with all that it has started, at once."""
    cluster.on(node, "pkill", "--signal", "KILL", "--full", f"^{VENV}/bin/")


def power_off(cluster: Cluster, node: str) -> None:
    """End a node with slurmd, slurmstepd and all of the job's processes, without a word to anybody."""
    cluster.hosts.power_off(node)


def weights(run: Path) -> Weights:
    """A run's last weights."""
    return {file.name: file.read_bytes() for file in list_snapshots(run / "snapshots")[0].glob("*.safetensors")}


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The weights of the same training in two processes, to which nothing happens."""
    run = tmp_path_factory.mktemp("alone") / "run"
    words = ("--nproc-per-node", "2", "--run-dir", str(run), *LONG, "--steps", str(STEPS))
    cluster.command(SLIPWAY, "run", *words, PYTHONWARNINGS="ignore")
    return weights(run)


@pytest.mark.timeout(900)
def test_a_spare_node_takes_the_place_of_one_whose_processes_are_killed(cluster: Cluster, undisturbed: Weights) -> None:
    job = started(cluster)
    kill_all(cluster, "node2")
    went_on(job, undisturbed)


@pytest.mark.timeout(900)
def test_a_spare_node_takes_the_place_of_one_without_power(cluster: Cluster, undisturbed: Weights) -> None:
    job = started(cluster)
    with cluster.without("node2", lambda: power_off(cluster, "node2")):
        went_on(job, undisturbed)


def went_on(job: Job, undisturbed: Weights) -> None:
    """The job finished on the spare node in the allocation that it had, with equal weights."""
    assert job.end() == "COMPLETED", job.text
    assert "takes place 1 of 2 in the job" in job.text
    assert "warning: this Slurm job has 3 nodes" not in job.text
    assert (job.fact("Restarts"), attempt(job), newest_step(job)) == ("0", 2, STEPS), job.text
    assert weights(run_of(job)) == undisturbed


@pytest.mark.timeout(900)
def test_the_job_requeues_itself_if_the_processes_on_its_first_node_are_killed(
    cluster: Cluster, undisturbed: Weights
) -> None:
    job = started(cluster)
    kill_all(cluster, "node1")
    cluster.wait(lambda: job.fact("Restarts") == "1", "the requeue", job)
    assert job.end() == "COMPLETED", job.text
    assert "takes place 0 of 2" not in job.text
    assert (job.fact("Restarts"), attempt(job), newest_step(job)) == ("1", 2, STEPS), job.text
    assert weights(run_of(job)) == undisturbed


def test_slurm_keeps_a_job_whose_first_node_has_no_power_until_it_is_told_to_requeue_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    venv = stand_in(tmp_path, "((SLURM_RESTART_COUNT)) || { echo waits; exec sleep 3600; }")
    job = train(cluster, options=OPTIONS, VENV=venv, SLIPWAY_SPARES="1")
    job.wait_for("(?s)(waits.*){3}")
    with cluster.without("node1", lambda: power_off(cluster, "node1")):
        cluster.wait(lambda: cluster.states()["node1"].startswith("down"), "the end of node1")
        assert job.state == "RUNNING", "--no-kill is for this node, too"
        cluster.command("scontrol", "requeue", job.number)
        cluster.wait(lambda: job.state == "PENDING", "the requeue", job)
    assert job.end() == "COMPLETED", job.text
    assert job.fact("Restarts") == "1"
