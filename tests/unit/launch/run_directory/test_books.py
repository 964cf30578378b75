"""The ledger while a launcher runs: what passes is booked as it does, and goes on where others left it."""

import json
from collections import Counter
from pathlib import Path

import pytest
from environments import PER_PROCESS
from stand_ins import plan_for, write_files

from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.bookkeeping import (
    EVERY,
    KEPT,
    Books,
    Milestones,
    earlier_ledger,
    write_ledger,
)
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import Beat, XidCount
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.ledger import KINDS, NOTHING, Kind, Ledger, ledger_json
from slipway.launch.verdict.verdict import Outcome
from slipway.process import machine as module
from slipway.process.machine import YOUNG, Clock, age
from slipway.protocol.phases import Phase

GOOD = Outcome(0, "n0", "finished", 1.0)
BAD = Outcome(1, "n1", "failed", 9.0, rank=3, cause=said("ValueError: bad"))


class Hands:
    """What the clocks show, which are 1,000 s apart."""

    now = 500.0

    @property
    def clock(self) -> Clock:
        """The clocks of a launcher that is 2 s old."""
        return Clock(time=lambda: self.now + 1000, monotonic=lambda: self.now, age=lambda: 2.0)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def keep_books(hands: Hands, plan: Plan | None = None, ledger: Ledger = NOTHING) -> Books:
    return Books(ledger, plan or plan_for(), hands.clock)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "node-0").mkdir()
    return Run(tmp_path, "none", 1)


def kinds(ledger: Ledger) -> dict[str, float]:
    return {kind.value: round(ledger[kind], 3) for kind in KINDS if ledger[kind]}


def train(hands: Hands, books: Books, seconds: float, first: int, reached: int, before: int = 0) -> None:
    """An attempt of which the second half is training."""
    milestones = Milestones(hands.now, before)
    hands.now += seconds
    spent = {Phase.SETUP: seconds / 2, Phase.TRAIN: seconds / 2}
    milestones.take({0: Beat(0, Phase.TRAIN, reached, monotonic=hands.now, first=first, spent=spent)}, hands.now)
    books.poll(milestones)


def test_a_job_with_a_restart_from_the_start_of_its_process(hands: Hands, run: Run) -> None:
    books = keep_books(hands)
    hands.now += 1
    books.meet(run, books.ledger, again=False)
    train(hands, books, 20, 0, 40)
    hands.now += 3
    books.end_attempt(BAD)
    hands.now += 4
    books.book(Kind.PAUSING)
    hands.now += 5
    books.meet(run, books.ledger, again=True)
    train(hands, books, 10, 20, 60, before=40)
    hands.now += 6
    books.end_attempt(GOOD)
    assert kinds(books.ledger) == {
        "starting": 12.0, "waiting": 1.0, "training": 12.5, "noticing": 3.0, "pausing": 4.0, "rejoining": 5.0,
        "restarting": 5.0, "repeating": 2.5, "ending": 6.0,
    }  # fmt: skip
    assert books.ledger.wall == 2 + 1 + 20 + 3 + 4 + 5 + 10 + 6
    assert books.ledger.attempts == 2
    assert run.ledger() == books.ledger.written
    assert books.ledger.until == hands.clock.time()
    told = {"time": 9.0, "node_rank": 1, "host": "n1", "rank": 3, "word": "failed", "evidence": "ValueError: bad"}
    assert run.node(0).failures() == [{"attempt": 1, **told}]


def test_it_is_written_every_few_seconds_while_an_attempt_runs(hands: Hands, run: Run) -> None:
    books = keep_books(hands)
    books.meet(run, books.ledger, again=False)
    train(hands, books, EVERY, 0, 40)
    kept = run.ledger()
    assert kept
    assert (kept.wall, kept.attempts, kept.until) == (2 + EVERY, 1, hands.clock.time())
    milestones = Milestones(hands.now, 0)
    hands.now += EVERY - 1
    books.poll(milestones)
    assert run.ledger() == kept
    hands.now += 1
    books.poll(milestones)
    assert (later := run.ledger())
    assert later.wall == 2 + 2 * EVERY
    assert books.ledger.wall == 2, "what goes on is not booked yet"


@pytest.mark.parametrize(
    ("environ", "attempt", "writes"),
    [({}, 1, True), ({}, 2, False), (PER_PROCESS, 1, False), (PER_PROCESS | {"RANK": "2", "LOCAL_RANK": "0"}, 1, True)],
)
def test_only_who_speaks_for_a_node_writes_and_not_once_another_went_on_with_the_run(
    hands: Hands, run: Run, environ: dict[str, str], attempt: int, writes: bool
) -> None:
    write_files(run.path, {"run.json": json.dumps({"attempt": attempt})})
    plan = plan_for(("linear",), environ)
    run.node(plan.topology.node_rank).path.mkdir(exist_ok=True)
    books = keep_books(hands, plan)
    books.meet(run, books.ledger, again=False)
    train(hands, books, 20, 0, 40)
    books.end_attempt(GOOD)
    assert (run.ledger(plan.topology.node_rank) is not None) is writes


def test_a_newcomer_goes_on_with_the_ledger_of_those_who_stayed(hands: Hands, run: Run) -> None:
    books = keep_books(hands)
    hands.now += 30
    stayed = Ledger((7.0,) * len(KINDS), 2, hands.clock.time() - 50)
    books.meet(run, stayed, again=True)
    assert books.ledger[Kind.REJOINING] == 57.0
    assert books.ledger[Kind.STARTING] == 7.0, "its own start was in those 50 s"
    train(hands, books, 10, 0, 40)
    books.end_attempt(GOOD)
    assert books.ledger.attempts == 3
    assert books.ledger[Kind.RESTARTING] == 12.0


LEFT = ledger_json(Ledger((3.0,) * len(KINDS), 2, 1400.0))


@pytest.mark.parametrize(
    ("outcome", "queued"),
    [
        (None, 101.0),  # 1500 - 1400, less the 2 s of this process, and 3
        ({"word": "stopped", "attempt": 1}, 101.0),
        ({"word": "finished", "attempt": 1}, 3.0),
        ({"word": "cancelled", "attempt": 1}, 3.0),
    ],
)
def test_the_time_between_two_launchers_is_the_queues_where_the_job_was_to_go_on(
    hands: Hands, run: Run, outcome: dict[str, object] | None, queued: float
) -> None:
    write_files(run.path, {"run.json": '{"attempt": 1}', "node-0/ledger.json": json.dumps(LEFT)})
    if outcome:
        write_files(run.path, {"outcome.json": json.dumps(outcome)})
    found = earlier_ledger(run, 0, hands.clock)
    assert found[Kind.QUEUED] == queued
    assert keep_books(hands, ledger=found).ledger[Kind.RESTARTING] == 5.0


def test_a_new_run_has_nothing_behind_it(hands: Hands, tmp_path: Path) -> None:
    assert earlier_ledger(RunDirectory(tmp_path / "new"), 0, hands.clock) == NOTHING


def test_a_launcher_that_asks_late_how_old_it_is_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= age() <= YOUNG
    monkeypatch.setattr(module, "YOUNG", -1.0)
    assert age() == 0.0


def test_xid_errors_are_counted_over_attempts_and_launchers(hands: Hands, run: Run) -> None:
    for launcher in (1, 2):
        books = keep_books(hands)
        for _ in range(2):
            books.meet(run, books.ledger, again=False)
            milestones = Milestones(hands.now, 0)
            milestones.xids = Counter({(5, 79): 1, (None, 31): 2})
            hands.now += EVERY
            books.poll(milestones)
            books.end_attempt(BAD)
        assert run.node(0).xids() == [XidCount(5, 79, 2 * launcher), XidCount(None, 31, 4 * launcher)]
    write_files(run.path, {"node-0/ledger.json": '{"xids": [{"gpu": "x"}, {"gpu": 0, "number": 45, "total": 1}]}'})
    assert run.node(0).xids() == [XidCount(0, 45, 1)]


def test_what_failed_is_kept_over_launchers_and_in_bounds(hands: Hands, run: Run) -> None:
    write_ledger(run.node(0).path, NOTHING, [{"attempt": number} for number in range(KEPT + 9)])
    books = keep_books(hands)
    books.meet(run, books.ledger, again=False)
    books.end_attempt(BAD)
    assert [row["attempt"] for row in run.node(0).failures()] == [*range(10, KEPT + 9), 1]
    write_files(run.path, {"node-0/ledger.json": '{"failures": [7, {"attempt": 2}]}'})
    assert run.node(0).failures() == [{"attempt": 2}]
    write_files(run.path, {"node-0/ledger.json": '{"failures": 7}'})
    assert run.node(0).failures() == []
