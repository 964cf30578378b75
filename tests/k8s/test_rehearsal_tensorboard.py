"""TensorBoard's pod serves what lies on the claim, which it cannot write to."""

import json
import urllib.request

import pytest
from containers import docker
from manifests import kustomize
from rehearsing import Cluster
from templates import of_kind

pytestmark = pytest.mark.needs("engine")


def test_tensorboard_answers_and_writes_nothing_to_the_claim(cluster: Cluster) -> None:
    documents = kustomize("overlays/tensorboard")
    [deployment] = of_kind(documents, "Deployment")
    made = deployment["spec"]["template"]
    made["metadata"]["name"] = made["spec"]["hostname"] = "slipway-tensorboard-abcde"
    made["spec"]["restartPolicy"] = "Never"  # a Deployment's is Always; kubelet's part is to start it
    pod = cluster.start(made, 0, documents)
    pod.container.wait_for("TensorBoard")
    [seen] = json.loads(docker("inspect", pod.container.name))
    [address] = [network["IPAddress"] for network in seen["NetworkSettings"]["Networks"].values()]
    with urllib.request.urlopen(f"http://{address}:6006/", timeout=60) as answer:
        assert answer.status == 200
    assert [mount["RW"] for mount in seen["Mounts"] if mount["Destination"] == "/checkpoints"] == [False]
    pod.stop()
