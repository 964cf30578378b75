"""The rehearsal knows every field of the manifests, and says which it passes over."""

import pytest
from fields import NOT_HONOURED, not_honoured
from manifests import kustomize

pytestmark = pytest.mark.pull

REHEARSED = ("base/single", "overlays/cpu", "overlays/pvc", "overlays/rdma", "overlays/kueue", "jobset", "trainer")


def test_every_field_is_honoured_or_passed_over_for_a_reason() -> None:
    found: dict[str, str] = {}
    for folder in REHEARSED:
        found |= not_honoured(kustomize(folder))
    assert found == NOT_HONOURED, "a reason that no manifest needs any more"
