"""By when the workers of a node must have ended, whatever happened in whichever order."""

import pytest

from slipway.launch.attempt.stops import STACKS, Deadline, Due

GRACE, AFTER_FAILURE = 100.0, 5.0


def happened(*events: str) -> Deadline:
    """What happened at second 0, 1, 2, …"""
    deadline = Deadline(GRACE)
    for now, event in enumerate(events):
        if event in ("fail", "node gone"):
            deadline.fail(now, AFTER_FAILURE, gone=event == "node gone")
        else:
            getattr(deadline, event)(now)
    return deadline


@pytest.mark.parametrize(
    ("events", "end"),
    [
        (["stop"], GRACE),
        (["stop", "stop"], GRACE),  # the second has no grace of its own
        (["fail"], AFTER_FAILURE),
        (["fail", "fail"], AFTER_FAILURE),
        (["fail", "stop"], AFTER_FAILURE),  # those that are left only wait for the one that failed
        (["stop", "fail"], GRACE),  # they may be saving
        (["stop", "node gone"], GRACE),
        (["node gone"], AFTER_FAILURE),
        (["hang"], 0),
        (["stop", "hang"], 1),
        (["stop", "give_up"], 1),
    ],
)
def test_the_earliest_end_counts(events: list[str], end: float) -> None:
    deadline = happened(*events)
    assert deadline.left(0.0) == end
    assert deadline.due(end, impatient=False) == Due.NOTHING
    assert deadline.due(end + 0.1, impatient=False) != Due.NOTHING


def test_without_a_reason_nothing_ends() -> None:
    assert Deadline(GRACE).due(1e9, impatient=False) == Due.NOTHING


@pytest.mark.parametrize(
    ("events", "first", "killed"),
    [
        (["stop"], Due.STACKS, True),
        (["hang"], Due.STACKS, False),
        (["node gone"], Due.STACKS, False),
        (["fail"], Due.KILL, False),  # its own stack was told; the others only wait for it
        (["stop", "fail"], Due.KILL, False),
        (["fail", "stop"], Due.KILL, False),
    ],
)
def test_what_hangs_is_asked_once_for_its_stacks_and_then_killed(events: list[str], first: Due, killed: bool) -> None:
    deadline, late = happened(*events), 2 * GRACE
    assert deadline.due(late, impatient=False) == first
    assert deadline.killed is killed
    deadline.wait_for_stacks(late)
    assert deadline.due(late + STACKS, impatient=False) == Due.NOTHING
    assert deadline.due(late + STACKS + 0.1, impatient=False) == Due.KILL


def test_where_nobody_prints_stacks_the_end_follows_at_once() -> None:
    deadline = happened("hang")
    assert [deadline.due(1.0, impatient=False) for _ in range(2)] == [Due.STACKS, Due.KILL]


def test_what_has_nothing_to_save_is_killed_at_once_and_not_asked_where_it_stands() -> None:
    deadline = happened("stop")
    deadline.nothing_to_save(0.0)
    assert deadline.left(0.0) == 0.0
    assert deadline.due(0.1, impatient=False) == Due.KILL
    assert deadline.killed


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    deadline = happened("stop")
    assert deadline.due(1.0, impatient=False) == Due.NOTHING
    assert deadline.due(1.0, impatient=True) == Due.KILL
    assert deadline.killed
