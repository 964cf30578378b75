"""What `slipway render` prints is what kustomize makes of the files, where both describe the same thing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubectl import K8S, Document, kustomize, read_documents
from schemas import operator_of, violations
from semantics import findings

pytestmark = pytest.mark.core

SLIPWAY = Path(sys.executable).with_name("slipway")
SAME = {
    "base/single": "k8s",
    "base/multi": "k8s --nodes 2",
    "overlays/cpu": "k8s --nodes 2 --gpus 0",
    "overlays/gpu": "k8s --nodes 2 --with gpu",
    "overlays/rdma": "k8s --nodes 2 --with gpu --with rdma",
    "overlays/kueue": "k8s --nodes 2 --with gpu --queue slipway",
    "overlays/pvc": "k8s --nodes 2 --with gpu --with pvc",
    "overlays/tensorboard": "k8s --nodes 2 --with gpu --with pvc --with tensorboard",
    "overlays/metrics": "k8s --nodes 2 --with metrics",
    "jobset": "jobset --nodes 2",
    "trainer": "trainer --nodes 2",
}
OTHERS = [
    "k8s --nodes 512 --gpus 8 --name abc --image registry.example:5000/team/slipway:0.2.1 --with rdma --with pvc --queue research",
    "k8s --nodes 2:4 --with pvc --queue research --topology cloud.provider.com/topology-rack gpt",
    "k8s --nodes 2+1 gpt",
    "k8s --gpus 0 --grace-seconds 300 --time 1-0 --max-restarts 7 gpt --preset tiny --steps 20",
    "jobset --nodes 100 --gpus 8 --with pvc --with gpu --with tensorboard --grace-seconds 5 vision --epochs 1",
    "trainer --nodes 3 --gpus 0 --with pvc --queue research --check linear",
]


def render(line: str, folder: Path) -> list[Document]:
    """What `slipway render …` prints in an empty folder."""
    done = subprocess.run([SLIPWAY, "render", *line.split()], cwd=folder, capture_output=True, text=True, check=True)
    return read_documents(done.stdout)


def in_order(value: Any) -> Any:
    """The same with lists of named things sorted: kustomize and we merge them to the same, in another order."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [in_order(item) for item in value]
        named = all(isinstance(item, dict) and "name" in item for item in items)
        return sorted(items, key=lambda item: (item["name"], item.get("mountPath", ""))) if named else items
    return value


def by_name(documents: list[Document]) -> dict[tuple[str, str], Document]:
    return {(document["kind"], document["metadata"]["name"]): in_order(document) for document in documents}


@pytest.mark.parametrize("folder", SAME)
def test_it_equals_what_kustomize_makes_of_the_same(folder: str, tmp_path: Path) -> None:
    assert by_name(render(SAME[folder], tmp_path)) == by_name(read_documents(kustomize(K8S / folder)))


def test_the_manifest_for_a_single_pod_equals_its_folder() -> None:
    kept = read_documents((K8S / "job.yaml").read_text(encoding="utf-8"))
    assert by_name(kept) == by_name(read_documents(kustomize(K8S / "base/single")))


@pytest.mark.parametrize("line", OTHERS)
def test_what_was_asked_for_is_valid_and_nothing_is_found_in_it(line: str, tmp_path: Path) -> None:
    documents = render(line, tmp_path)
    assert findings(documents) == []
    known = [document for document in documents if not operator_of(document)]
    assert known
    assert [text for document in known for text in violations(document)] == []
