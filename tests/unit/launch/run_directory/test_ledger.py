"""What each second of a job went into."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.run_directory.bookkeeping import go_on, write_ledger
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.verdict.ledger import (
    COSTS,
    KIND_OF,
    KINDS,
    NOTHING,
    Kind,
    Ledger,
    Seen,
    Waited,
    book_attempt,
    ledger_json,
    ledger_line,
    ledger_of,
    span,
    waiting_texts,
)
from slipway.protocol.files import ATTEMPTS, SECONDS
from slipway.protocol.phases import Phase

SPENT = {
    Phase.SETUP: 3.0,
    Phase.PREPARE: 1.0,
    Phase.LOAD: 1.0,
    Phase.FIRST_STEP: 10.0,
    Phase.TRAIN: 50.0,
    Phase.DATA: 5.0,
    Phase.MEASURE: 5.0,
    Phase.EVALUATE: 8.0,
    Phase.SAVE: 2.0,
    Phase.FINISH: 1.0,
}  # 86 s
OURS = Seen(
    100.0, 200.0, spoke=190.0, spent=SPENT, first=0, reached=60
)  # its first word came after 4 s, its last 10 s before
SCRIPT = Seen(100.0, 200.0, builtin=False, started=106.0)
BEFORE = Seen(100.0, 200.0)


def booked(seen: Seen, *, good: bool = True, again: bool = False) -> dict[str, float]:
    return {kind.value: round(part, 6) for kind, part in book_attempt(seen, good=good, again=again).items() if part}


def with_steps(first: int, reached: int, before: int) -> Seen:
    return Seen(100.0, 200.0, spoke=190.0, spent=SPENT, first=first, reached=reached, before=before)


DONE = {"starting": 9.0, "compiling": 10.0, "training": 60.0, "evaluating": 8.0, "saving": 2.0, "ending": 11.0}
AGAIN = {"restarting": 19.0, "evaluating": 8.0, "saving": 2.0, "ending": 11.0}


@pytest.mark.parametrize(
    ("seen", "good", "again", "parts"),
    [
        (OURS, True, False, DONE),
        (OURS, False, False, {**DONE, "ending": 1.0, "noticing": 10.0}),
        (Seen(100.0, 200.0, spoke=190.0, spent=SPENT, reached=60, before=30), True, True, {**AGAIN, "training": 30.0, "repeating": 30.0}),
        (with_steps(20, 60, 20), True, True, {**AGAIN, "training": 60.0}),
        (with_steps(20, 70, 30), True, True, {**AGAIN, "training": 48.0, "repeating": 12.0}),
        (with_steps(20, 60, 60), True, True, {**AGAIN, "repeating": 60.0}),
        (with_steps(20, 60, 99), True, True, {**AGAIN, "repeating": 60.0}),
        (with_steps(20, 60, 0), True, True, {**AGAIN, "training": 60.0}),  # it began from another run
        (with_steps(20, 20, 30), True, True, {**AGAIN, "training": 60.0}),  # no step was done
        (SCRIPT, True, False, {"starting": 6.0, "running": 94.0}),
        (SCRIPT, False, True, {"restarting": 6.0, "running": 94.0}),
        (Seen(0.0, 100.0, builtin=False, started=6.0), True, False, {"starting": 6.0, "running": 94.0}),
        (Seen(100.0, 200.0, builtin=False, started=90.0), True, False, {"running": 100.0}),  # a clock that was set back
        (
            Seen(100.0, 200.0, builtin=False, started=106.0, noticed=180.0), False, False,
            {"starting": 6.0, "running": 74.0, "noticing": 20.0},
        ),
        (
            Seen(100.0, 200.0, builtin=False, started=106.0, noticed=180.0), True, False,
            {"starting": 6.0, "running": 74.0, "ending": 20.0},
        ),
        (Seen(100.0, 200.0, builtin=False, noticed=180.0), False, False, {"starting": 80.0, "noticing": 20.0}),
        (Seen(100.0, 200.0, started=110.0, noticed=180.0), False, False, {"starting": 80.0, "noticing": 20.0}),
        (BEFORE, False, True, {"restarting": 100.0}),
        (Seen(100.0, 100.0), False, True, {}),
    ],
)  # fmt: skip
def test_every_second_of_an_attempt_is_booked_once(
    seen: Seen, good: bool, again: bool, parts: dict[str, float]
) -> None:
    assert booked(seen, good=good, again=again) == parts
    assert sum(parts.values()) == seen.ended - seen.begun


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e5),
    st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.booleans(), st.booleans(),
)  # fmt: skip
def test_an_attempts_parts_are_the_whole_however_odd_the_clocks(
    lasted: float,
    spoke: float,
    trained: float,
    noticed: float,
    first: int,
    reached: int,
    before: int,
    good: bool,
    own: bool,
) -> None:
    spent = {Phase.TRAIN: trained}
    seen = Seen(5.0, 5.0 + lasted, own, 6.0, noticed, spoke, spent, first, reached, before)
    parts = book_attempt(seen, good=good, again=good)
    assert all(part >= 0 for part in parts.values())
    assert not parts or sum(parts.values()) == pytest.approx(lasted, rel=1e-6, abs=1e-6)


def test_every_phase_has_its_kind() -> None:
    assert set(KIND_OF) == set(Phase)


def test_what_restarts_cost_is_nothing_that_a_job_without_them_has() -> None:
    assert COSTS == (Kind.REPEATING, Kind.NOTICING, Kind.PAUSING, Kind.REJOINING, Kind.RESTARTING)
    assert not set(COSTS) & {*KIND_OF.values(), Kind.RUNNING, Kind.QUEUED, Kind.WAITING}


def ledger(attempts: int = 1, until: float = 1000.0, **seconds: float) -> Ledger:
    made = NOTHING.book({Kind(name): value for name, value in seconds.items()})
    return Ledger(made.seconds, attempts, until)


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        (ledger(12, training=9_410, restarting=200, noticing=50, pausing=30, repeating=40, starting=270), "2 h 46 min (94.1 % training, 2.7 % starting; 11 restarts cost 3.2 %)"),
        (ledger(training=99, starting=0.9, saving=0.1), "1 min 40 s (99.0 % training)"),
        (ledger(training=99, starting=1), "1 min 40 s (99.0 % training, 1.0 % starting)"),
        (ledger(2, running=90, rejoining=10), "1 min 40 s (90.0 % running; 1 restart cost 10.0 %)"),
        (ledger(starting=4), "4 s (0.0 % training, 100.0 % starting)"),
        (ledger(training=99.004, starting=0.996), "1 min 40 s (99.0 % training, 1.0 % starting)"),  # as it is written
        (NOTHING, ""),
    ],
)  # fmt: skip
def test_a_ledger_in_a_line(kept: Ledger, line: str) -> None:
    assert ledger_line(kept) == line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.4, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (3_600, "1 h 0 min"), (7_385, "2 h 3 min"),
        (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_how_long_something_took_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_training_that_went_back_itself_made_steps_again() -> None:
    seen = dataclasses.replace(OURS, again=12.0)
    assert booked(seen) == DONE | {"training": 48.0, "repeating": 12.0}
    both = dataclasses.replace(with_steps(0, 60, 30), again=12.0)
    assert booked(both)["repeating"] == pytest.approx(12 + 48 / 2)
    assert booked(dataclasses.replace(OURS, again=1e6))["repeating"] == 60.0, "no more than there was"


def test_whom_the_others_waited_for_is_part_of_the_line() -> None:
    kept = ledger(training=90, starting=10).wait_for({3: 6.104, 0: 0.4}).wait_for({3: 1.0, 5: 2.0})
    assert ledger_line(kept) == (
        "1 min 40 s (90.0 % training (waiting for rank 3: 7.1 %) (waiting for rank 5: 2.0 %), 10.0 % starting)"
    )
    assert ledger_json(kept)["waited"] == {"3": 7.1, "5": 2.0, "0": 0.4}
    assert ledger_of(ledger_json(kept)) == kept.written
    many = NOTHING.wait_for({rank: float(rank) for rank in range(1000)})
    assert [each.rank for each in many.waited] == [999, 998, 997, 996, 995, 994, 993, 992]


@pytest.mark.parametrize(
    "waited", [[7], 7, None, {"x": 1.0}, {"-1": 1.0}, {"1": -1.0}, {"1": "y"}, {"9" * 20: 1.0}, {"1": 1e300}]
)
def test_waits_that_make_no_sense_spoil_no_ledger(waited: object) -> None:
    found = ledger_of({"seconds": {"training": 5.0}, "attempts": 1, "until": 1.0, "waited": waited})
    assert found == Ledger(ledger(training=5).seconds, 1, 1.0)
    assert waiting_texts(NOTHING.wait_for({3: 5.0})) == [], "nothing is booked"
    assert NOTHING.wait_for({3: -5.0, 4: 1e300}).waited == (Waited(4, SECONDS), Waited(3, 0.0))


def test_what_passed_between_two_launchers_is_booked_where_time_went_on() -> None:
    kept = ledger(training=10)
    assert go_on(kept, Kind.QUEUED, 1060.0)[Kind.QUEUED] == 60.0
    assert go_on(kept, Kind.QUEUED, 900.0).wall == 10.0  # a clock that was set back
    assert ledger(3).restarts == 2
    assert NOTHING.restarts == 0


def test_a_ledger_is_written_and_read_again(tmp_path: Path) -> None:
    node = tmp_path / "node-0"
    node.mkdir()
    kept = ledger(3, training=10.25, repeating=2.5)
    write_ledger(node, kept)
    assert RunDirectory(tmp_path).ledger() == kept
    later = Ledger(kept.seconds, 4, 2000.0)
    (tmp_path / "outcome.json").write_text(json.dumps({"ledger": ledger_json(later)}))
    assert RunDirectory(tmp_path).ledger() == later
    assert ledger_of({"seconds": {"training": 10.25}}) == ledger(0, training=10.25, until=0.0)
    assert RunDirectory(tmp_path / "nowhere").ledger(3) is None
    write_ledger(tmp_path / "gone", kept)  # a disk that is away


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"seconds": 7},
        {"seconds": {"training": "x"}, "attempts": 1, "until": 1.0},
        {"seconds": {"training": -1.0}, "attempts": 1, "until": 1.0},
        {"seconds": {"training": 1e300}, "attempts": 1, "until": 1.0},
        {"seconds": {"training": None}, "attempts": 1, "until": 1.0},
        {"seconds": {}, "attempts": -1, "until": 1.0},
        {"seconds": {}, "attempts": ATTEMPTS + 1, "until": 1.0},
        {"seconds": {}, "attempts": 1, "until": "x"},
    ],
)
def test_a_ledger_that_makes_no_sense_counts_as_none(record: Any) -> None:
    assert ledger_of(record) is None


def test_a_ledger_knows_every_kind() -> None:
    with pytest.raises(ValueError, match="impossible seconds"):
        Ledger((1.0,) * (len(KINDS) - 1))
    assert Ledger((1.0,) * len(KINDS)).wall == len(KINDS)
