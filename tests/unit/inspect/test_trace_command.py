"""`slipway trace`: the request, the answer, and who cannot be asked. Rank 0 is played by a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chrome_traces import flying, span, write_traces
from stand_ins import Slipway
from waiting import wait_until

from slipway.cli import trace as command
from slipway.launch.attempt.stops import Stops
from slipway.launch.run_directory.node_directory import NodeDirectory, TraceAnswer
from slipway.launch.run_directory.records import read_record
from slipway.launch.run_directory.run_lock import RunLock
from slipway.protocol.files import read_json, write_json

NODE = Path("runs/gpt-1/node-0")
WANTED, ANSWER, TRACEABLE = NODE / "trace-wanted", NODE / "trace.json", NODE / "traceable"


@pytest.fixture(autouse=True)
def _run(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    NODE.mkdir(parents=True)
    write_json(NODE.parent / "run.json", {"workload": "gpt", "started": 1.0, "attempt": 2})
    monkeypatch.setattr(command, "RUN_POLL", 0.2)
    monkeypatch.setattr(command, "ANSWER_POLL", 0.01)
    monkeypatch.setattr(NodeDirectory, "trace_answer", note)


SEEN: list[object] = []  # the states of answers that the command has read


def note(node: NodeDirectory) -> TraceAnswer:
    """Read the answer for the command."""
    found = read_record(TraceAnswer, node.path / "trace.json")
    SEEN.append(found.state)
    return found


@contextmanager
def running(*, traceable: bool = True) -> Iterator[None]:
    with Stops() as stops, RunLock(NODE / "launcher.json", print, stops):
        if traceable:
            TRACEABLE.touch()
        yield


@contextmanager
def rank_0(*turns: Callable[[str], None]) -> Iterator[list[dict[str, object]]]:
    """Wait for a request, and take the turns with its id; the requests."""
    asked: list[dict[str, object]] = []

    def serve() -> None:
        request = wait_until(lambda: read_json(WANTED), "a request")
        asked.append(request)
        for turn in turns:
            turn(str(request["id"]))
            if turn is not turns[-1]:
                wait_until(lambda: SEEN[-1] == read_json(ANSWER).get("state"), "the command to read the answer")

    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    thread.join()


def answer(state: str, **more: object) -> Callable[[str], None]:
    def turn(token: str) -> None:
        write_json(ANSWER, {"id": token, "attempt": 2, "state": state, "steps": 5, "step": 11, **more})
        WANTED.unlink(missing_ok=True)

    return turn


def test_a_request_is_answered_with_a_file_and_a_table(slipway: Slipway) -> None:
    ranks = [[span("aten::mm", 0, 9), flying(9, 12)]] * 2
    write_traces(NODE.parent / "traces" / "step-00000012", ranks)
    turns = answer("taken"), answer("tracing"), answer("collecting"), answer("done", folder="step-00000012")
    with running(), rank_0(*turns) as asked:
        done = slipway("trace", "gpt-1", "--steps", "5")
    assert done.code == 0, done.err
    assert {name: asked[0][name] for name in ("steps", "attempt")} == {"steps": 5, "attempt": 2}
    assert done.out.startswith("steps 12 to 13 of 2 ranks")
    assert "runs/gpt-1/traces/step-00000012/trace.json.gz" in done.out
    assert "slipway: recording 5 steps after step 11\n" in done.err
    assert (NODE.parent / "traces/step-00000012/trace.json.gz").stat().st_size
    assert not WANTED.exists()


def test_a_folder_of_traces_is_merged_without_asking_anybody(slipway: Slipway) -> None:
    folder = write_traces(Path("elsewhere"), [[span("aten::mm", 0, 9)]])
    done = slipway("trace", str(folder))
    assert done.code == 0, done.err
    assert "elsewhere/trace.json.gz" in done.out


def test_what_does_not_run_is_not_traced(slipway: Slipway) -> None:
    done = slipway("trace")
    assert (done.code, WANTED.exists()) == (78, False)
    assert "runs/gpt-1 is not running. `slipway status runs/gpt-1` shows how it ended." in done.err


def test_a_script_is_told_what_its_own_loop_can_do(slipway: Slipway) -> None:
    write_json(NODE.parent / "run.json", {"workload": "train.py", "started": 1.0, "attempt": 2})
    with running(traceable=False):
        done = slipway("trace")
    assert (done.code, WANTED.exists()) == (78, False)
    assert "`from slipway.train import trace` does it" in done.err


def test_a_workload_that_does_not_train_yet_says_so(slipway: Slipway) -> None:
    with running(traceable=False):
        done = slipway("trace")
    assert done.code == 1
    assert "is not training, or not yet" in done.err


def test_another_nodes_disk_is_told_of(slipway: Slipway) -> None:
    NODE.rename(NODE.with_name("node-1"))
    with Stops() as stops, RunLock(NODE.with_name("node-1") / "launcher.json", print, stops):
        done = slipway("trace")
    assert done.code == 78
    assert "another node with a disk of its own" in done.err


@pytest.mark.parametrize("state", ["taken", "tracing", "collecting"])
def test_two_at_once_are_one_too_many(state: str, slipway: Slipway) -> None:
    write_json(ANSWER, {"id": "theirs", "attempt": 2, "state": state})
    with running():
        done = slipway("trace")
    assert (done.code, WANTED.exists()) == (1, False)
    assert "are being traced already" in done.err


def test_a_request_that_waits_is_not_overwritten(slipway: Slipway) -> None:
    WANTED.write_text('{"id": "theirs"}')
    with running():
        done = slipway("trace")
    assert done.code == 1
    assert "are being traced already" in done.err
    assert json.loads(WANTED.read_text()) == {"id": "theirs"}


def test_what_an_earlier_attempt_left_under_way_holds_nobody_up(slipway: Slipway) -> None:
    write_json(ANSWER, {"id": "theirs", "attempt": 1, "state": "tracing"})
    with running(), rank_0(answer("failed", why="it cannot be written: No space left on device")):
        done = slipway("trace")
    assert done.code == 1
    assert "There is no trace: it cannot be written: No space left on device." in done.err


def new_attempt(_: str) -> None:
    write_json(NODE.parent / "run.json", {"workload": "gpt", "started": 1.0, "attempt": 3})


def end_training(_: str) -> None:
    TRACEABLE.unlink()


def ask_as_well(_: str) -> None:
    write_json(WANTED, {"id": "theirs"})


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        (new_attempt, "another one began"),
        (end_training, "training ended before"),
        (ask_as_well, "another request came in between"),
    ],
)
def test_nobody_waits_for_what_will_not_come(turn: Callable[[str], None], why: str, slipway: Slipway) -> None:
    with running(), rank_0(turn):
        done = slipway("trace")
    assert done.code == 1
    assert why in done.err
    assert read_json(WANTED).get("id") in (None, "theirs")


def test_ctrl_c_takes_the_request_back(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        assert WANTED.exists()
        raise KeyboardInterrupt

    with running():
        monkeypatch.setattr(command.time, "sleep", interrupted)
        done = slipway("trace")
    assert done.code != 0
    assert not WANTED.exists()


@pytest.mark.parametrize("steps", ["0", "101", "many"])
def test_the_number_of_steps_has_bounds(steps: str, slipway: Slipway) -> None:
    done = slipway("trace", "--steps", steps)
    assert done.code == 2
    assert "is not a whole number from 1 to 100. Type for example --steps 3" in done.err
