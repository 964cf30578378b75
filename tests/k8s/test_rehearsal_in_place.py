"""A Job of a user's own whose containers kubelet starts again in place: the pods stay, and so do their disks."""

import pytest
from kubectl import Document
from manifests import kustomize, set_to
from policy import judge_restarts
from rehearsing import COURSE, GO, Cluster
from templates import of_kind
from test_rehearsal_losses import resumed, same_outcome


def in_place(documents: list[Document], limit: int) -> list[Document]:
    """The documents with `restartPolicy: OnFailure`, which allows no podFailurePolicy and no limit for each index."""
    [job] = of_kind(documents, "Job")
    for name in ("podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"):
        job["spec"].pop(name)
    job["spec"]["backoffLimit"] = limit
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    return documents


@pytest.mark.needs("engine")
def test_the_job_resumes_in_containers_that_are_started_again_in_place(cluster: Cluster) -> None:
    job = cluster.apply(in_place(set_to(kustomize("overlays/cpu"), *COURSE), 6), held=GO)
    pods = list(job.pods)
    for index, holds in ((1, 1), (0, 2)):
        job.until(lambda holds=holds: job.pod(1).holds == holds and all(pod.snapshots() for pod in pods))
        saved = max(pod.snapshots()[-1] for pod in pods)
        pods[index].kill()
        job.until(lambda holds=holds: job.pod(1).holds == holds + 1)
        assert resumed(job) >= saved, job
    job.pod(1).let_go(GO)
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert job.pods == pods, "no pod is replaced"
    assert all(pod.restarts for pod in pods), job
    same_outcome(job, since=0)  # the disk of pod 0 is the one that it began with


@pytest.mark.parametrize(("limit", "restarts", "ends"), [(6, 5, False), (6, 6, True), (0, 0, False), (0, 1, True)])
def test_a_job_counts_restarts_in_place_against_its_limit(limit: int, restarts: int, ends: bool) -> None:
    [job] = of_kind(in_place(set_to(kustomize("overlays/cpu")), limit), "Job")
    assert bool(judge_restarts(job["spec"], restarts)) == ends
    assert judge_restarts({"template": {"spec": {"restartPolicy": "Never"}}}, 99) is None
