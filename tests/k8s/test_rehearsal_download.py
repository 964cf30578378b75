"""What the download Job has fetched, with a token from a Secret, training finds on the claim: without a network or a token."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubectl import K8S, Document, compose, read_documents
from manifests import kustomize, set_to
from rehearsing import SMALL, Cluster

sys.path.append(str(Path(__file__).parents[1] / "train"))

from hub_server import HubServer

pytestmark = pytest.mark.needs("engine")

TOKEN = "hf_of_a_test"
FETCH = ("data", "fetch", "--kind", "dataset", "acme/notes")
TEXT = b"What is fetched once is read by many. " * 400


@pytest.fixture
def hub(cluster: Cluster) -> Iterator[HubServer]:
    """A Hub that pods reach, with a data set that is shown to nobody without the token."""
    server = HubServer(cluster.gateway)
    server.add("acme/notes", {"train.txt": TEXT, "validation.txt": TEXT}, kind="dataset", token=TOKEN)
    yield server
    server.close()


def secret(token: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "slipway-hub"},
        "type": "Opaque",
        "stringData": {"token": token},
    }


def test_training_finds_what_was_fetched_for_it(cluster: Cluster, hub: HubServer, tmp_path: Path) -> None:
    download = set_to(kustomize("overlays/download"), *FETCH, HF_ENDPOINT=hub.url)
    first = cluster.apply([*download, secret(TOKEN)])
    assert first.finish() == ("Complete", "CompletionsReached"), first
    assert TOKEN in hub.tokens
    asked = len(hub.requests)
    parts = [K8S / "components" / name for name in ("cpu", "pvc")]
    training = read_documents(compose(tmp_path, K8S / "base/single", *parts))
    args = (*SMALL, "--steps", "20", "--dataset", "hub:acme/notes")
    job = cluster.apply(set_to(training, *args, HF_ENDPOINT=hub.url))
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert len(hub.requests) == asked, "training went to the Hub"


def test_a_repository_that_is_not_shown_ends_the_download_at_once(cluster: Cluster, hub: HubServer) -> None:
    job = cluster.apply(set_to(kustomize("overlays/download"), *FETCH, HF_ENDPOINT=hub.url))
    assert job.finish() == ("Failed", "PodFailurePolicy"), job
    assert job.codes == [(0, 78)]
    assert "acme/notes" in job.pod(0).message
