"""When a job is started again, after which pause, and why not."""

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.verdict.cause import Cause, CauseKind, said
from slipway.launch.verdict.restarts import (
    DEFAULT,
    MINUTE,
    PAUSES,
    SPELL,
    STUCK,
    AttemptHistory,
    Ending,
    Try,
    came_from_outside,
    count_failures,
    decide,
    is_passing,
)
from slipway.launch.verdict.verdict import CODES, Outcome, judge
from slipway.protocol.causes import Sign


def ended(word: str, evidence: str | Cause = "ValueError: bad batch") -> Outcome:
    return Outcome(0, "n0", word, 1000.0, cause=evidence if isinstance(evidence, Cause) else said(evidence))


def tried(word: str = "failed", before: int | None = None, after: int | None = None, **more: Any) -> Try:
    evidence = more.pop("evidence", "ValueError: bad batch")
    return Try(more.pop("number", 1), ended(word, evidence), before, after, more.pop("moved", True), **more)


KILL = Cause(CauseKind.KILLED)
PARENT_KILLED = Cause(CauseKind.PARENT_SIGNALLED, number=-signal.SIGKILL, name="torchrun")
NO_MEMORY = Cause(CauseKind.OUT_OF_MEMORY, signs=(Sign.MEMORY,))
FAILED, LOST, KILLED = tried(), tried("peer"), tried(evidence=KILL)
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
    history = AttemptHistory(tuple(tried(number=each) for each in numbers), missed=missed)
    assert (history.made, history.number) == (made, number)
    assert (AttemptHistory().made, AttemptHistory().number) == (0, 0)


def test_an_attempt_that_could_not_be_made_gained_nothing_and_an_end_counts_no_failures() -> None:
    attempt = Try(1, ended("unhealthy"))
    assert (attempt.reached, attempt.gained, attempt.advanced) == (0, 0.0, False)
    assert Ending(judge([attempt.outcome])).failures == 0


def test_the_help_names_the_number_of_restarts_that_a_workload_of_ours_has() -> None:
    assert f"auto is {DEFAULT} for Slipway's workloads" in BY_NAME["SLIPWAY_MAX_RESTARTS"].help


NEWER = {"before": 20, "after": 30}


@pytest.mark.parametrize(
    ("attempt", "progressed"),
    [
        (tried(), False),
        (tried(**NEWER), False),  # a crash loop that saves each second
        (tried(**NEWER, gained=4.9), False),
        (tried(**NEWER, gained=5.0), True),
        (tried(gained=5.0), False),
        (tried(gained=59.9), False),
        (tried(gained=60.0), True),
        (tried(gained=3_600.0), True),
        (tried(evidence=KILL), False),
        (tried(evidence=KILL, **NEWER), True),
        (tried(evidence=KILL, gained=4.9), False),
        (tried(evidence=KILL, gained=5.0), True),
        (tried(evidence=PARENT_KILLED, **NEWER), True),
        (tried("peer", **NEWER), True),
        (tried("lost", **NEWER), True),
        (tried("lost"), False),
        (tried("lost", gained=5.0), True),
        (tried(evidence="OSError: [Errno 98] Address already in use", **NEWER), False),  # the workload's own doing
        (tried(evidence=NO_MEMORY, **NEWER), False),
        # Of a script its time is known, and its snapshots if it takes them by slipway.resume.
        (tried(moved=None, enough=600.0, gained=599.9), False),
        (tried("peer", moved=None, enough=600.0, gained=599.9), False),
        (tried(moved=None, enough=600.0, gained=599.9, **NEWER), True),
        (tried(moved=None, enough=600.0, gained=4.9, **NEWER), False),
        (tried("peer", moved=None, enough=600.0, **NEWER), True),
        (tried(moved=None, enough=600.0, gained=600.0), True),
        (tried(moved=None, enough=1.0, gained=1.0), True),
        (Try(1, ended("unhealthy")), False),  # one that could not be made
    ],
)
def test_an_attempt_is_progress_where_it_trained_on_and_saved_and_from_outside_one_of_both_will_do(
    attempt: Try, progressed: bool
) -> None:
    assert attempt.progressed is progressed


@pytest.mark.parametrize(
    ("last", "before", "failures"),
    [
        (FAILED, 0, 1),
        (FAILED, 2, 3),
        (LOST, 2, 3),
        (tried("stopped"), 2, 2),  # a node that left as it was asked to
        (tried("stopped", gained=5.0), 2, 0),
        (tried(evidence=KILL, **NEWER), 2, 0),
        (tried(gained=MINUTE), 9, 0),
    ],
)
def test_failures_are_counted_in_a_row_and_progress_begins_anew(last: Try, before: int, failures: int) -> None:
    assert count_failures(last, before) == failures


def pauses_of(*attempts: Try, limit: int = 3) -> list[float | None]:
    """The pause behind each attempt of a job, up to its end."""
    failures, pauses = 0, []
    for made, last in enumerate(attempts, 1):
        failures = count_failures(last, failures)
        pauses.append(decide(attempts[:made], failures, limit).pause)
        if pauses[-1] is None:
            break
    return pauses


STEADY = tried(evidence=KILL, **NEWER, gained=9.0)  # killed every few seconds, and further each time
SHORT = tried(**NEWER, gained=1.0)  # trains for a second, saves, and crashes


@pytest.mark.parametrize(
    ("attempts", "pauses"),
    [
        ((STEADY,) * 40, [0.0] * 40),
        ((tried("lost", **NEWER),) * 40, [0.0] * 40),
        ((SHORT,) * 9, [1.0, 4.0, 16.0, None]),
        ((LOST,) * 9, [1.0, 4.0, 16.0, None]),
        ((STEADY, SHORT, SHORT, SHORT, SHORT), [0.0, 1.0, 4.0, 16.0, None]),
        ((SHORT, SHORT, STEADY, SHORT, LOST, STEADY), [1.0, 4.0, 0.0, 1.0, 4.0, 0.0]),
        ((FAILED,) * 9, [1.0, 4.0, None]),  # 93
        ((tried(gained=MINUTE), *(FAILED,) * 9), [0.0, 1.0, 4.0, None]),
    ],
)
def test_a_job_that_advances_is_never_given_up_and_a_crash_loop_is(
    attempts: tuple[Try, ...], pauses: list[float | None]
) -> None:
    assert pauses_of(*attempts) == pauses


@pytest.mark.parametrize("word", sorted(CODES))
def test_only_failures_and_lost_peers_are_tried_again(word: str) -> None:
    again = decide((tried(word),), 1, 3)
    assert (again.pause is not None) == (word in ("failed", "peer", "lost"))
    assert again.why is None


def test_pauses_grow_and_then_stay_and_there_is_none_behind_progress() -> None:
    assert [decide((FAILED,), failures, 9).pause for failures in range(8)] == [0, 1, 4, 16, 60, 60, 60, 60]
    assert list(PAUSES) == sorted(PAUSES)


def test_the_limit_counts_restarts_and_not_attempts() -> None:
    assert decide(GROWING[:3], 3, 3).pause is not None
    assert decide(GROWING[:4], 4, 3).pause is None


def test_a_failure_before_the_first_step_is_tried_again_where_its_cause_passes() -> None:
    assert decide((tried(moved=False, evidence="OSError: [Errno 98] Address already in use"),), 1, 3).pause == PAUSES[0]
    assert decide((tried("peer", moved=False),), 1, 3).pause == PAUSES[0]


@pytest.mark.parametrize(
    ("tries", "failures", "limit", "says"),
    [
        ((FAILED,), 1, 0, "--max-restarts is 0"),
        ((STEADY,), 0, 0, "--max-restarts is 0"),
        (GROWING[:2], 2, 1, "--max-restarts 1, and 2 failures in a row were without progress"),
        (GROWING[:4], 4, 3, "--max-restarts 3, and 4 failures in a row were without progress"),
        ((tried(moved=False),), 1, 3, "before its first step"),
        (
            (tried(moved=False, evidence=NO_MEMORY),),
            1,
            3,
            "before its first step",
        ),
        ((*GROWING[:1], tried(before=1, after=1, moved=False)), 1, 3, "before its first step"),
    ],
)
def test_why_there_is_no_further_attempt(tries: tuple[Try, ...], failures: int, limit: int, says: str) -> None:
    decision = decide(tries, failures, limit)
    assert decision.pause is None
    assert says in str(decision.why)


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
        ((FAILED, FAILED, tried(gained=MINUTE)), False),
        ((FAILED, tried(gained=MINUTE), FAILED), False),
        ((FAILED, tried(gained=MINUTE - 1), FAILED), True),
        ((FAILED, tried(evidence=KILL, gained=SPELL), FAILED), False),
        ((KILLED,) * 3, True),  # again and again before it comes any further
    ],
)
def test_three_failures_without_a_newer_snapshot_end_it(tries: tuple[Try, ...], stuck: bool) -> None:
    decision = decide(tries, 1, 9)
    assert (decision.why == Cause(CauseKind.STUCK, number=STUCK)) is stuck
    assert (decision.pause is None) is stuck


@given(st.lists(st.sampled_from([FAILED, LOST, KILLED, *GROWING, SHORT, STEADY]), min_size=1), st.integers(0, 5))
def test_no_job_has_more_restarts_in_a_row_without_progress_than_the_limit(tries: list[Try], limit: int) -> None:
    pauses = pauses_of(*tries, limit=limit)
    row = 0
    for last, pause in zip(tries, pauses, strict=False):
        row = 0 if last.progressed else row + 1
        assert pause is None or row <= limit
        assert pause is None or decide((last,), row, limit).pause == pause


def test_the_default_ends_a_crash_loop_before_the_limit_does() -> None:
    assert decide((FAILED,) * STUCK, STUCK, 3).why == Cause(CauseKind.STUCK, number=STUCK)


@pytest.mark.parametrize(
    ("outcome", "passing"),
    [
        (ended("peer", "another process of this job went away"), True),
        (ended("failed", "torchrun ended with 1: DistNetworkError: ... EADDRINUSE, message: address already in use"), True),
        (ended("failed", "OSError: [Errno 116] Stale file handle"), True),
        (ended("failed", "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"), True),
        (ended("failed", KILL), True),
        (ended("failed", PARENT_KILLED), True),
        (ended("failed", "RuntimeError: Connection closed by peer"), True),
        (ended("failed", NO_MEMORY), False),
        (ended("failed", "ModuleNotFoundError: No module named 'x'"), False),
        (ended("failed", "RuntimeError: Unable to find address for: eth0"), True),
        (ended("failed", "SIGSEGV"), False),
    ],
)  # fmt: skip
def test_a_passing_cause_is_known(outcome: Outcome, passing: bool) -> None:
    assert is_passing(outcome) is passing


@pytest.mark.parametrize(
    ("outcome", "outside"),
    [
        (ended("peer"), True),
        (ended("lost"), True),
        (ended("failed", "RuntimeError: Connection closed by peer"), True),
        (ended("failed", KILL), True),
        (ended("failed", PARENT_KILLED), True),
        (ended("failed", "OSError: [Errno 98] Address already in use"), False),
        (ended("failed", NO_MEMORY), False),
        (ended("failed", "SIGSEGV"), False),
        (ended("failed", Cause(CauseKind.PARENT_SIGNALLED, number=-signal.SIGTERM, name="torchrun")), False),
        (ended("failed", said("SIGKILL: somebody killed it, as a script printed")), False),
        (ended("unhealthy"), False),
    ],
)
def test_what_comes_from_outside_says_nothing_about_the_workload(outcome: Outcome, outside: bool) -> None:
    assert came_from_outside(outcome) is outside
