"""What Slurm and its users stop: nothing that was trained is lost, and only what is to go on goes on."""

import re

import pytest
from cluster import Cluster, Job
from jobs import attempt, newest_step, outcome, steps_made, train_long, wait_for_step

STEPS = 150


def started(cluster: Cluster) -> Job:
    """A job of two nodes that has made some steps."""
    job = train_long(cluster, STEPS)
    wait_for_step(job, 30)
    return job


def stopped_at(text: str) -> int:
    """The step that a stop ended a job at, by what that said. A job that goes on may have a newer snapshot by now."""
    return int(re.findall(r"stopped at step (\d+)", text)[0])


def went_on(job: Job, step: int, attempts: int = 2) -> None:
    """The job was started again, went on from this step and finished; every step was made once."""
    assert "finished on 2 nodes" in job.text
    assert attempt(job) == attempts
    assert "attempt 2" in job.text
    assert f"/step-{step:08}" in job.text.partition("resuming from ")[2]
    assert steps_made(job) == sorted(set(steps_made(job)))
    assert newest_step(job) == STEPS


def test_scancel_saves_and_the_job_stays_cancelled(either: Cluster) -> None:
    job = started(either)
    either.command("scancel", job.number)
    assert job.end() == "CANCELLED"
    # Its file may end here, since srun is gone; the run directory knows more.
    either.wait(lambda: outcome(job).get("word") == "stopped", "the verdict", job)
    assert newest_step(job) > 25
    assert "requeueing" not in job.text
    assert job.fact("Restarts") == "0"


@pytest.mark.pull
def test_the_early_signal_saves_and_the_job_requeues_itself(either: Cluster) -> None:
    job = started(either)
    either.command("scancel", "--signal=USR1", job.number)  # as Slurm does before a time limit: to the tasks alone
    job.wait_for("train.sbatch: requeueing: the job was stopped and its snapshot is saved")
    assert job.end() == "COMPLETED", job.text
    assert job.fact("Restarts") == "1"
    went_on(job, stopped_at(job.text))


def test_a_requeue_saves_and_the_job_goes_on(either: Cluster) -> None:
    job = started(either)
    either.command("scontrol", "requeue", job.number)
    stopped = lambda: (told := outcome(job)).get("word") == "stopped" and told["first"]["evidence"]  # noqa: E731
    step = stopped_at(either.wait(stopped, "the verdict", job))
    assert job.end() == "COMPLETED", job.text
    assert "requeueing" not in job.text  # Slurm did it
    went_on(job, step)


def test_a_preempted_job_saves_within_its_grace_requeues_itself_and_goes_on(cluster: Cluster) -> None:
    job = started(cluster)
    urgent = cluster.sbatch("--partition=urgent", "--nodes=2", "--exclusive", "--wrap=hostname")
    job.wait_for(
        "train.sbatch: requeueing: the job was stopped and its snapshot is saved"
    )  # TERM went to the tasks alone
    assert urgent.end() == "COMPLETED"
    assert job.end() == "COMPLETED", job.text
    # These Slurms start a job that requeued itself in its grace once more when it has finished: slurm/README.md, "Versions".
    restarts = 2 if (24, 5) <= cluster.version < (26, 5) else 1
    assert job.fact("Restarts") == str(restarts)
    assert job.text.count("was already finished") == 2 * (restarts - 1)  # each node says so
    went_on(job, stopped_at(job.text), attempts=restarts + 1)


def test_an_interrupt_saves_and_ends_the_job_for_good(cluster: Cluster) -> None:
    job = started(cluster)
    cluster.command("scancel", "--signal=INT", job.number)
    assert job.end() == "FAILED"
    assert job.fact("ExitCode") == "79:0"
    assert "train.sbatch: not requeued" in job.text
    assert newest_step(job) > 25
