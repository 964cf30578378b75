"""When a job is started again, after which pause, and why not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.verdict.attempts import DEFAULT, PAUSES, STUCK, Course, Decision, Try, decide, is_passing
from slipway.launch.verdict.verdict import CODES, Outcome


def ended(word: str, evidence: str = "ValueError: bad batch") -> Outcome:
    return Outcome(0, "n0", word, 1000.0, evidence=evidence)


def tried(word: str = "failed", before: int | None = None, after: int | None = None, **more: Any) -> Try:
    evidence = more.pop("evidence", "ValueError: bad batch")
    return Try(more.pop("number", 1), ended(word, evidence), before, after, more.pop("moved", True))


FAILED, LOST = tried(), tried("peer")
GROWING = tuple(tried(before=step, after=step + 1) for step in range(9))


@pytest.mark.parametrize(
    ("before", "after", "advanced"),
    [(None, None, False), (None, 0, True), (5, None, False), (5, 5, False), (5, 6, True), (6, 5, False)],
)
def test_an_attempt_advanced_where_it_left_a_newer_snapshot(
    before: int | None, after: int | None, advanced: bool
) -> None:
    assert tried(before=before, after=after).advanced is advanced


@pytest.mark.parametrize(
    ("numbers", "missed", "made", "number"),
    [
        ((), 0, 0, 0),
        ((1,), 0, 1, 1),
        ((1, 2, 3), 0, 3, 3),
        ((1, 2, 2), 0, 2, 2),  # what ended it between two attempts stands under the number of the one before
        ((3, 4), 2, 4, 4),
    ],
)
def test_the_attempts_of_a_job_are_counted(numbers: tuple[int, ...], missed: int, made: int, number: int) -> None:
    course = Course(tuple(tried(number=each) for each in numbers), missed=missed)
    assert (course.made, course.number) == (made, number)
    assert (Course().made, Course().number) == (0, 0)


def test_the_help_names_the_number_of_restarts_that_a_workload_of_ours_has() -> None:
    assert f"auto is {DEFAULT} for Slipway's workloads" in BY_NAME["SLIPWAY_MAX_RESTARTS"].help


@pytest.mark.parametrize(
    ("earlier", "limit", "pause"), [(0, 3, 1.0), (1, 3, 4.0), (2, 3, 16.0), (3, 3, None), (3, 9, 60.0), (7, 9, 60.0)]
)
def test_attempts_that_failed_before_this_launcher_came_count(earlier: int, limit: int, pause: float | None) -> None:
    assert decide((FAILED,), limit, earlier).pause == pause


def test_attempts_that_ended_as_asked_count_nowhere() -> None:
    assert decide((tried("stopped", after=1), tried("stopped", 1, 2), tried(before=2, after=3)), 1).pause == PAUSES[0]


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
        ((FAILED,) * 4, True),
        ((FAILED, FAILED, tried(after=3), tried(before=3, after=3)), False),
        ((FAILED, tried("lost"), FAILED, tried("lost")), False),
        ((FAILED, tried(evidence="RuntimeError: Connection closed by peer"), FAILED), False),
        ((tried(moved=None), FAILED, FAILED, FAILED), False),
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
        (ended("failed", "RuntimeError: Unable to find address for: eth0"), True),
        (ended("failed", "SIGSEGV"), False),
    ],
)  # fmt: skip
def test_a_passing_cause_is_known(outcome: Outcome, passing: bool) -> None:
    assert is_passing(outcome) is passing
