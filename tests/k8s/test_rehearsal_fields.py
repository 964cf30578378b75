"""The rehearsal knows every field of the manifests, and says which it passes over."""

import pytest
from fields import NOT_HONOURED, not_honoured
from manifests import kustomize
from templates import of_kind
from volumes import amount

pytestmark = pytest.mark.pull

REHEARSED = ("base/single", "overlays/cpu", "overlays/pvc", "overlays/rdma", "overlays/kueue", "jobset", "trainer")


def test_every_field_is_honoured_or_passed_over_for_a_reason() -> None:
    found: dict[str, str] = {}
    for folder in REHEARSED:
        found |= not_honoured(kustomize(folder))
    assert found == NOT_HONOURED, "a reason that no manifest needs any more"


@pytest.mark.parametrize("place", ["Job.spec", "Pod.spec", "Container"])
def test_a_field_that_nobody_has_thought_of_is_an_error(place: str) -> None:
    documents = kustomize("overlays/cpu")
    [job] = of_kind(documents, "Job")
    pod = job["spec"]["template"]["spec"]
    {"Job.spec": job["spec"], "Pod.spec": pod, "Container": pod["containers"][0]}[place]["hostNetwork"] = True
    with pytest.raises(AssertionError, match=f"does not know {place}.hostNetwork"):
        not_honoured(documents)


@pytest.mark.parametrize(("quantity", "number"), [(2, 2), ("500m", 0.5), ("4Gi", 2**32), ("1k", 1000), ("64M", 64e6)])
def test_quantities_are_read_as_kubernetes_reads_them(quantity: str | int, number: float) -> None:
    assert amount(quantity) == number
