"""Every document against the schemas of Kubernetes itself, in which an unknown field is an error."""

from collections.abc import Callable
from pathlib import Path

import pytest
from breaking import POD, TRAIN, set_field
from kubectl import K8S, compose, find_components, find_folders, kustomize, read_documents
from schemas import MINORS, operator_of, violations
from templates import Document, read_pods

pytestmark = pytest.mark.core

BASES = sorted((K8S / "base").iterdir())


@pytest.fixture
def validated(note_unchecked: Callable[[str, str], None]) -> Callable[[str], None]:
    """Validates each document of a text; of an operator's kind the Job within."""

    def validate(text: str) -> None:
        documents = read_documents(text)
        assert documents
        for document in documents:
            if operator := operator_of(document):
                note_unchecked(document["kind"], operator)
            else:
                assert not violations(document)
        for pods in read_pods(documents):
            if pods.job is not None:
                assert not violations(as_job(pods.job))

    return validate


def as_job(spec: Document) -> Document:
    """The Job that an operator makes."""
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slipway"}, "spec": spec}


@pytest.mark.parametrize("folder", find_folders(), ids=lambda folder: str(folder.relative_to(K8S)))
def test_what_is_applied_as_a_folder_is_valid(folder: Path, validated: Callable[[str], None]) -> None:
    validated(kustomize(folder))


@pytest.mark.parametrize("file", sorted(K8S.glob("*.yaml")), ids=lambda file: file.name)
def test_what_is_applied_as_a_file_is_valid(file: Path, validated: Callable[[str], None]) -> None:
    validated(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
@pytest.mark.parametrize("component", find_components(), ids=lambda component: component.name)
def test_each_component_goes_with_each_base(
    base: Path, component: Path, tmp_path: Path, validated: Callable[[str], None]
) -> None:
    validated(compose(tmp_path, base, component))


@pytest.mark.parametrize(
    "path",
    ["spec podReplacmentPolicy", f"{TRAIN} volumeMounts shm mountpath", f"{POD} securityContext runAsNonroot"],
)
def test_a_mistyped_field_is_noticed_in_every_minor(path: str) -> None:
    (job,) = (one for one in read_documents(kustomize(BASES[0])) if one["kind"] == "Job")
    assert not violations(job)
    set_field(job, path, "x")
    found = violations(job)
    assert len(found) == len(MINORS)
    assert all(path.split()[-1] in text for text in found)


def test_a_kind_that_does_not_exist_is_noticed() -> None:
    job = as_job({"template": {}})
    assert violations({**job, "kind": "Jbo"})
    assert violations({**job, "apiVersion": "batch/v2"})
    assert violations({**job, "apiVersion": "batch.example/v1"})
