"""Documents of k8s/ as `kubectl kustomize` makes them, and what a test changes in them so that a job is short."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import kubectl
from kubectl import K8S, Document, read_documents
from templates import of_kind


def kustomize(folder: str) -> list[Document]:
    """The documents of a folder of k8s/."""
    return read_documents(kubectl.kustomize(K8S / folder))


def set_to(documents: Iterable[Document], *args: str, **env: str) -> list[Document]:
    """A copy of the documents in which every training container has these arguments, and these variables besides."""
    changed = copy.deepcopy(list(documents))
    for train_job in of_kind(changed, "TrainJob"):
        train_job["spec"]["trainer"]["args"] = list(args)
    for container in containers(changed):
        container["args"] = list(args)
        kept = [variable for variable in container.get("env", []) if variable["name"] not in env]
        container["env"] = [*kept, *({"name": name, "value": value} for name, value in env.items())]
    return changed


def containers(value: Any) -> Iterator[Document]:
    """All containers, however deep a document hides its pod template."""
    if isinstance(value, list):
        for each in value:
            yield from containers(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from each if name == "containers" else containers(each)
