"""A Job of two pods and a spare one loses its pods: the spare one takes their places at once, and their replacements wait."""

from pathlib import Path

import pytest
from manifests import set_to
from pod import Pod
from rehearsing import GO, Cluster
from test_render import render

from slipway.protocol.snapshots import list_snapshots

LINEAR = ("run", "--nproc-per-node", "1", "linear", "--steps", "40", "--log-every", "10", "--save-every", "10")
WAITS = "runs without this spare node, which waits"
pytestmark = pytest.mark.needs("engine")


@pytest.mark.timeout(900)
def test_the_spare_pod_takes_the_place_of_pod_1_and_then_its_replacement_that_of_pod_0(
    cluster: Cluster, tmp_path: Path
) -> None:
    documents = set_to(render("k8s --nodes 2+1 --gpus 0", tmp_path), *LINEAR)
    job = cluster.apply(documents, held=GO)
    job.until(lambda: job.pod(1).holds and WAITS in job.pod(2).text)
    first = job.pod(1)
    first.kill()
    job.until(lambda: job.pod(2).holds)
    assert "takes place 1 of 2 in the job" in job.pod(0).text, job
    job.until(lambda: job.pod(1) is not first and WAITS in job.pod(1).text)

    zero = job.pod(0)
    zero.kill()
    job.until(lambda: job.pod(2).holds == 2)
    assert "takes place 0 of 2 in the job" in job.pod(1).text, job
    job.until(lambda: job.pod(0) is not zero and WAITS in job.pod(0).text)

    job.pod(2).let_go(GO)
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert sorted(job.codes)[:2] == [(0, 0), (0, 137)], job
    assert "this node was a spare one until the end" in job.pod(0).text, job
    assert "results are in" in job.pod(1).text, "it speaks for all"

    undisturbed = cluster.apply(set_to(render("k8s --nodes 2 --gpus 0", tmp_path), *LINEAR))
    assert undisturbed.finish()[0] == "Complete", undisturbed
    assert weights(job.pod(1)) == weights(job.pod(2)) == weights(undisturbed.pod(0))


def weights(pod: Pod) -> dict[str, bytes]:
    """The files of the last weights on its volume."""
    [last, *_] = list_snapshots(pod.results() / "snapshots")
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}
