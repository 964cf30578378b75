"""Manifests that are broken on purpose, one field at a time, to see that a rule notices."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

from kubectl import K8S, Document, kustomize, read_documents
from semantics import findings
from templates import name_of

GONE = object()
POD = "spec template spec"
TRAIN = f"{POD} containers 0"


@dataclass(frozen=True)
class Break:
    """`path` names a field of the document by its steps, to which `value` is given; `finding` is part of what is said."""

    path: str
    value: Any
    finding: str
    document: str = "Job slipway"
    folder: str = "overlays/tensorboard"

    @property
    def title(self) -> str:
        value = "nothing" if self.value is GONE else self.value
        return f"{self.document}: {self.path.removeprefix(POD).strip()} = {value}"[:100]


def set_field(document: Document, path: str, value: Any) -> None:
    """Give a field a value, or take it away. A list's item is named by its number or its name; a new one is appended."""
    *steps, last = path.split()
    place: Any = document
    for step in steps:
        place = place[_key(place, step)] if isinstance(place, list) else place.setdefault(step, {})
    key = _key(place, last)
    if value is GONE:
        del place[key]
    elif key is None:
        place.append(value)
    else:
        place[key] = value


def _key(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return step
    names = [str(number) if step.isdigit() else item["name"] for number, item in enumerate(place)]
    return names.index(step) if step in names else None


@cache
def _intact(folder: str) -> list[Document]:
    return read_documents(kustomize(K8S / folder))


def broken(case: Break) -> list[str]:
    """What is found in the folder's documents with the one field changed."""
    documents = copy.deepcopy(_intact(case.folder))
    (document,) = (one for one in documents if f"{one['kind']} {name_of(one)}" == case.document)
    set_field(document, case.path, case.value)
    return findings(documents)
