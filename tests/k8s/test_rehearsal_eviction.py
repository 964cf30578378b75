"""A pod of the rehearsal is evicted: it leaves alone with 75, and its replacement, with an empty disk, goes on from its last step."""

import re

import pytest
from manifests import kustomize, set_to
from rehearsing import COURSE, GO, Cluster
from test_rehearsal_losses import same_outcome

pytestmark = pytest.mark.needs("engine")


def test_an_evicted_pod_leaves_alone_and_its_replacement_goes_on_from_its_last_step(cluster: Cluster) -> None:
    job = cluster.apply(set_to(kustomize("overlays/cpu"), *COURSE), held=GO)
    told = job.pod(1)
    job.until(lambda: told.holds)
    told.evict()
    job.until(lambda: "SIGTERM received" in told.text)
    told.let_go(GO)
    job.until(lambda: job.pod(1) is not told and job.pod(1).holds)
    job.pod(1).let_go(GO)
    assert told.ended.code == 75, job
    [stopped] = set(re.findall(r"stopped at step (\d+)", told.message))
    assert int(stopped) == job.pod(0).resumed, job
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert sorted(job.codes) == [(0, 0), (1, 0), (1, 75)]
    same_outcome(job, since=0)
