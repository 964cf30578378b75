"""The rehearsal's Job controller decides as Kubernetes' does, by the rules of our own manifest."""

import dataclasses

import pytest
from kubectl import Document
from manifests import kustomize
from policy import Ended, due, judge
from templates import of_kind

pytestmark = pytest.mark.core


@pytest.fixture
def spec() -> Document:
    """What our manifest for two pods asks the controller for."""
    [job] = of_kind(kustomize("overlays/cpu"), "Job")
    return dict(job["spec"])


def pod(index: int, code: int, *, disrupted: bool = False, container: str = "train") -> Ended:
    return Ended(f"slipway-{index}-abcde", index, container, code, disrupted)


@pytest.mark.parametrize(
    ("pods", "end"),
    [
        ([], None),
        ([pod(1, 0)], None),
        ([pod(1, 137), pod(0, 76)], None),
        ([pod(0, 75)] * 20, None),
        ([pod(1, 137, disrupted=True)] * 20, None),
        ([pod(1, 137)] * 3, None),
        ([pod(0, 137)] * 3 + [pod(1, 137)] * 3, None),
        ([pod(1, 137)] * 4, ("FailureTarget", "MaxFailedIndexesExceeded")),
        ([pod(1, 78)] + [pod(1, 137)] * 4, ("FailureTarget", "PodFailurePolicy")),
        ([pod(1, 78)], ("FailureTarget", "PodFailurePolicy")),
        ([pod(0, 0), pod(1, 78)], ("FailureTarget", "PodFailurePolicy")),
        ([pod(0, 0), pod(1, 76)], ("SuccessCriteriaMet", "SuccessPolicy")),
    ],
    ids=str,
)
def test_the_job_ends_when_it_must(spec: Document, pods: list[Ended], end: tuple[str, str] | None) -> None:
    condition = judge(spec, pods)
    assert (condition and (condition.type, condition.reason)) == end


def test_without_a_limit_per_index_the_pods_of_all_count() -> None:
    failed = [pod(0, 1)] * 2 + [pod(1, 1)] * 2
    assert judge({"backoffLimit": 4, "completions": 2}, failed) is None
    condition = judge({"backoffLimit": 3, "completions": 2}, failed)
    assert condition is not None
    assert condition.reason == "BackoffLimitExceeded"
    ended = [dataclasses.replace(pod(index, 1), at=100.0) for index in range(4)]
    assert due({"backoffLimit": 24}, ended, 0, haste=10) == 100 + 80 / 10


def test_each_failure_of_an_index_doubles_its_wait_preemptions_too(spec: Document) -> None:
    ended = [dataclasses.replace(pod(1, 75, disrupted=True), at=float(at)) for at in range(8)]
    waits = [due(spec, ended[:count], 1) - (count - 1) for count in range(1, 9)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert due(spec, ended, 0) == 0
