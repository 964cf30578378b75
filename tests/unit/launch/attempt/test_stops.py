"""What counts as a request to stop, and which one counts."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.launch.attempt import stops as module
from slipway.launch.attempt.stops import SAME_STOP, Stop, Stops, ask_to_stop, raise_flag


@pytest.fixture
def stops() -> Iterator[Stops]:
    with Stops() as stops:
        yield stops


TERM, USR1, INT, HUP = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP


@pytest.mark.parametrize(
    ("requests", "word", "later", "impatient"),
    [
        ([], "stopped", None, False),
        ([(0, TERM)], "stopped", None, False),
        ([(0, USR1), (SAME_STOP, TERM)], "stopped", None, False),
        ([(0, USR1), (60, TERM)], "stopped", TERM, False),
        ([(0, INT), (1, INT)], "cancelled", None, False),
        ([(0, INT), (6, INT)], "cancelled", INT, True),
        ([(0, INT), (6, TERM)], "cancelled", TERM, False),
        ([(0, TERM), (6, INT)], "stopped", INT, False),
        ([(0, USR1), (60, INT)], "stopped", INT, False),
        ([(0, USR1), (60, INT), (62, INT)], "stopped", INT, False),
        ([(0, USR1), (60, INT), (66, INT)], "stopped", INT, True),
        ([(0, INT), (3, USR1), (60, TERM)], "cancelled", TERM, False),
        ([(0, INT), (3, TERM), (6, INT)], "cancelled", INT, True),
    ],
)
def test_requests_within_five_seconds_are_one_and_a_later_one_asks_for_haste(
    stops: Stops,
    requests: list[tuple[float, signal.Signals]],
    word: str,
    later: signal.Signals | None,
    impatient: bool,
) -> None:
    stops.came = [Stop(at, number, number.name) for at, number in requests]
    assert stops.word == word
    assert (stops.later.number if stops.later else None) == later
    assert stops.impatient is impatient


def test_signals_are_noted_and_wake_whoever_waits(stops: Stops) -> None:
    os.kill(os.getpid(), TERM)
    assert stops.wait(3600), "no test waits so long"
    assert stops.first is not None
    assert stops.first.name == "SIGTERM"


@pytest.mark.parametrize(
    ("sent", "number", "name"),
    [
        (HUP, TERM, "SIGHUP"),
        (signal.SIGUSR2, USR1, "SIGUSR2"),  # which asks ranks for their stacks
        (signal.SIGXCPU, TERM, "SIGXCPU"),
        (signal.SIGALRM, TERM, "SIGALRM"),
        (signal.SIGRTMIN + 1, TERM, f"signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_a_signal_that_scripts_get_as_another(stops: Stops, sent: int, number: signal.Signals, name: str) -> None:
    os.kill(os.getpid(), sent)
    assert stops.wait(30)
    assert [(stop.number, stop.name) for stop in stops.came] == [(number, name)]
    assert stops.word == "stopped"


def test_no_signal_that_can_be_caught_ends_the_launcher_without_a_verdict() -> None:
    crashes = {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
    never = {signal.SIGKILL, signal.SIGSTOP}
    harmless = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    stopping = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}  # which ignores them
    assert set(module.CAUGHT) == set(signal.valid_signals()) - crashes - never - harmless - stopping - of_python


def test_a_hangup_that_is_ignored_on_entry_stays_ignored() -> None:
    before = signal.signal(HUP, signal.SIG_IGN)  # nohup
    try:
        with Stops() as stops:
            os.kill(os.getpid(), HUP)
            os.kill(os.getpid(), USR1)
            assert stops.wait(30)
            assert [stop.name for stop in stops.came] == ["SIGUSR1"]
        assert signal.getsignal(HUP) == signal.SIG_IGN
    finally:
        signal.signal(HUP, before)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (TERM, USR1, INT, HUP)]
    with Stops():
        assert signal.getsignal(TERM) != before[0]
    assert [signal.getsignal(number) for number in (TERM, USR1, INT, HUP)] == before


def test_without_a_request_waiting_takes_its_time(stops: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = [100.0], []

    def select(readers: object, writers: object, others: object, seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(module.select, "select", select)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    assert not stops.wait(10.2)
    assert waits == pytest.approx([0.5] * 20 + [0.2]), "with a look at the stop file now and then"


@pytest.mark.parametrize(
    ("content", "word", "name"),
    [
        ("", "stopped", "the stop file"),
        ("now, please", "stopped", "the stop file"),
        ('{"outcome": "stopped"}', "stopped", "the stop file"),
        ('{"outcome": "cancelled"}', "cancelled", "`slipway stop`"),
    ],
)
def test_a_stop_file_is_a_request(stops: Stops, tmp_path: Path, content: str, word: str, name: str) -> None:
    stops.watch(tmp_path)
    stops.poll()
    assert not stops.came
    (tmp_path / "stop").write_text(content)
    stops.poll()
    stops.poll()
    assert [stop.name for stop in stops.came] == [name]
    assert stops.word == word


def test_a_stop_file_that_was_there_before_was_meant_for_somebody_else(stops: Stops, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    stops.watch(tmp_path)
    stops.poll()
    (tmp_path / "stop").unlink()
    stops.poll()
    assert not stops.came
    ask_to_stop(tmp_path)
    stops.poll()
    ask_to_stop(tmp_path)
    stops.poll()
    assert [stop.number for stop in stops.came] == [INT, INT], "and writing it again is asking again"


def test_the_flag_for_the_workers_says_what_was_asked(tmp_path: Path) -> None:
    assert raise_flag(tmp_path, Stop(0.0, INT, "`slipway stop`")) == ""
    flag = {"outcome": "cancelled", "signal": "SIGINT", "name": "`slipway stop`"}
    assert json.loads((tmp_path / "stop").read_text()) == flag


def test_a_flag_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert "No such file" in raise_flag(tmp_path / "absent", Stop(0.0, TERM, "SIGTERM"))
