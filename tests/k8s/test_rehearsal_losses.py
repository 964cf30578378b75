"""A job on the rehearsal's engine loses its pods: each is replaced, with an empty disk, and no more than a snapshot's steps are lost."""

import json

import pytest
from controller import Job
from manifests import kustomize, set_to
from rehearsing import COURSE, GO, STEPS, Cluster

pytestmark = pytest.mark.needs("engine")


@pytest.mark.pull
def test_the_job_survives_the_loss_of_pod_1_and_then_of_pod_0(cluster: Cluster) -> None:
    job = cluster.apply(set_to(kustomize("overlays/cpu"), *COURSE), held=GO)
    for index, holds in ((1, 1), (0, 2)):
        saved = lose(job, index)
        job.until(lambda holds=holds: job.pod(1).holds == holds)
        assert resumed(job) >= saved, job
    job.pod(1).let_go(GO)
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert sorted(job.codes) == [(0, 0), (0, 137), (1, 0), (1, 137)]
    same_outcome(job, since=resumed(job))


def lose(job: Job, index: int) -> int:
    """Kill a pod once rank 1 is held and both have a snapshot, and wait for another; the newest snapshot that was left."""
    lost, left = job.pod(index), job.pod(1 - index)
    job.until(lambda: job.pod(1).holds and lost.snapshots() and left.snapshots())
    saved = left.snapshots()[-1]
    lost.kill()
    job.until(lambda: job.pod(index) is not lost)
    return saved


def resumed(job: Job) -> int:
    """The step of the snapshot that the newest attempt went on from, as pod 0 tells; 0 where it began."""
    return job.pod(0).resumed or 0


def same_outcome(job: Job, since: int) -> None:
    """Both pods tell the same, and the disk of pod 0 has every step after `since` that is logged, once."""
    verdicts = job.verdicts()
    assert verdicts[0] == verdicts[1], job
    assert verdicts[0]["word"] == "finished", job
    runs = [job.pod(index).results() for index in (0, 1)]
    outcomes = [json.loads((run / "outcome.json").read_text()) for run in runs]
    for name in ("code", "word", "first", "tallies"):
        assert outcomes[0][name] == outcomes[1][name] == verdicts[0][name], job
    assert outcomes[0]["attempt"] == outcomes[1]["attempt"], job
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    logged = [step for step in range(10, STEPS + 1, 10) if step > since]
    assert [line["step"] for line in lines if "lr" in line] == logged, job
