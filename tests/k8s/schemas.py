"""The schemas of Kubernetes itself, of every minor that is supported."""

import json
from functools import cache
from importlib.metadata import version
from typing import Any

from kubernetes_validate import (  # type: ignore[import-untyped]
    SchemaNotFoundError,
    ValidationError,
    validate,
)

Document = dict[str, Any]

# From 1.31 on a Job's successPolicy works without a feature gate. The validator's own version is the newest one's.
OLDEST, NEWEST = 31, int(version("kubernetes-validate").split(".")[1])
MINORS = tuple(f"1.{minor}" for minor in range(OLDEST, NEWEST + 1))

# What Kubernetes has no schema of, as it belongs to an operator.
OPERATORS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobSet's",
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): "Kubeflow Trainer's",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "Kubeflow Trainer's",
    ("monitoring.coreos.com/v1", "PodMonitor"): "the Prometheus operator's",
}


def operator_of(document: Document) -> str | None:
    """Whose kind it is, None where Kubernetes itself must know it."""
    return OPERATORS.get((document.get("apiVersion", ""), document.get("kind", "")))


def violations(document: Document) -> list[str]:
    """What the schemas say against a document of Kubernetes' own kinds; a field that they do not know counts."""
    return _violations(json.dumps(document, sort_keys=True))


@cache  # the same documents are in many overlays
def _violations(text: str) -> list[str]:
    document = json.loads(text)
    found = []
    for minor in MINORS:
        try:
            checked = validate(document, minor, strict=True)
            assert checked == minor, f"the schema of {checked} was taken for {minor}"
        except ValidationError as error:
            place = ".".join(str(part) for part in error.absolute_path)
            found.append(f"{minor}: {document['kind']} {document['metadata']['name']}: {place}: {error.message}")
        except SchemaNotFoundError as error:
            found.append(error.message)
    return found
