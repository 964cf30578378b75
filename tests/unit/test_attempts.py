"""When a job is started again, after which pause, and why not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.attempts import PAUSES, STUCK, Decision, Try, decide, is_passing
from slipway.launch.verdict import CODES, Outcome


def ended(word: str, evidence: str = "ValueError: bad batch") -> Outcome:
    return Outcome(0, "n0", word, 1000.0, evidence=evidence)


def tried(word: str = "failed", before: int | None = None, after: int | None = None, **more: Any) -> Try:
    evidence = more.pop("evidence", "ValueError: bad batch")
    return Try(more.pop("number", 1), ended(word, evidence), before, after, more.pop("moved", True))


FAILED, LOST = tried(), tried("peer")
GROWING = tuple(tried(before=step, after=step + 1) for step in range(9))


@pytest.mark.parametrize("word", sorted(CODES))
def test_only_failures_and_lost_peers_are_tried_again(word: str) -> None:
    again = decide((tried(word),), 3)
    assert (again.pause is not None) == (word in ("failed", "peer", "lost"))
    assert again.why == ""


def test_pauses_grow_and_then_stay() -> None:
    pauses = [decide(GROWING[:count], 9).pause for count in range(1, 8)]
    assert pauses == [1, 4, 16, 60, 60, 60, 60]
    assert list(PAUSES) == sorted(PAUSES)


def test_the_limit_counts_restarts_and_not_attempts() -> None:
    assert decide(GROWING[:3], 3).pause is not None
    assert decide(GROWING[:4], 3).pause is None


def test_a_failure_before_the_first_step_is_tried_again_where_its_cause_passes() -> None:
    assert decide((tried(moved=False, evidence="OSError: [Errno 98] Address already in use"),), 3).pause == PAUSES[0]
    assert decide((tried("peer", moved=False),), 3).pause == PAUSES[0]


@pytest.mark.parametrize(
    ("tries", "limit", "says"),
    [
        ((FAILED,), 0, "--max-restarts is 0"),
        (GROWING[:2], 1, "--max-restarts 1"),
        (GROWING[:4], 3, "--max-restarts 3"),
        ((tried(moved=False),), 3, "before its first step"),
        ((tried(moved=False, evidence="out of memory: killed by the kernel (SIGKILL)"),), 3, "before its first step"),
        ((*GROWING[:1], tried(before=1, after=1, moved=False)), 3, "before its first step"),
    ],
)
def test_why_there_is_no_further_attempt(tries: tuple[Try, ...], limit: int, says: str) -> None:
    decision = decide(tries, limit)
    assert decision.pause is None
    assert says in decision.why
    assert not decision.stuck


@pytest.mark.parametrize(
    ("tries", "stuck"),
    [
        ((FAILED, FAILED, FAILED), True),
        ((tried(before=5, after=5),) * 3, True),
        ((FAILED, FAILED), False),
        ((LOST, LOST, LOST), False),
        ((FAILED, LOST, FAILED), False),
        ((FAILED, LOST, FAILED, FAILED), True),
        ((FAILED, FAILED, tried(after=3)), False),
        ((tried(after=3), *[tried(before=3, after=3)] * 2), False),
        ((tried(after=3), *[tried(before=3, after=3)] * 3), True),
        ((tried(moved=None),) * 3, False),  # nobody knows what a user's script saves
    ],
)
def test_three_failures_without_a_newer_snapshot_end_it(tries: tuple[Try, ...], stuck: bool) -> None:
    decision = decide(tries, 9)
    assert decision.stuck is stuck
    assert (decision.pause is None) is stuck


@given(st.lists(st.sampled_from([FAILED, LOST, *GROWING]), min_size=1), st.integers(0, 5))
def test_no_course_has_more_attempts_than_the_limit_and_one(tries: list[Try], limit: int) -> None:
    decision = decide(tuple(tries), limit)
    assert isinstance(decision, Decision)
    assert decision.pause is None or len(tries) <= limit


def test_the_default_ends_a_crash_loop_before_the_limit_does() -> None:
    assert decide((FAILED,) * STUCK, 3).stuck


@pytest.mark.parametrize(
    ("outcome", "passing"),
    [
        (ended("peer", "another process of this job went away"), True),
        (ended("failed", "torchrun ended with 1: DistNetworkError: ... EADDRINUSE, message: address already in use"), True),
        (ended("failed", "OSError: [Errno 116] Stale file handle"), True),
        (ended("failed", "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"), True),
        (ended("failed", "SIGKILL: somebody killed it (kill -9), no out-of-memory kill was counted here"), True),
        (ended("failed", "torchrun was ended by SIGKILL; its workers were ended, too"), True),
        (ended("failed", "RuntimeError: Connection closed by peer"), True),
        (ended("failed", "out of memory: killed by the kernel (SIGKILL), which counts an out-of-memory kill"), False),
        (ended("failed", "ModuleNotFoundError: No module named 'x'"), False),
        (ended("failed", "SIGSEGV"), False),
    ],
)  # fmt: skip
def test_a_passing_cause_is_known(outcome: Outcome, passing: bool) -> None:
    assert is_passing(outcome) is passing
