"""The launcher's side of the watchers: what a worker says, however it arrives."""

import json
import socket
from collections.abc import Iterator

import pytest

from slipway.launch.hangs import stack_request
from slipway.launch.hangs.stack_request import WatchedWorker
from slipway.protocol.tracebacks import ProgramEnd

STATUS = {"0": {"last_completed_collective": "4", "last_enqueued_collective": "5"}}
ANSWER = {
    "records": [{"pg_status": STATUS, "entries": []}],
    "members": {"0": [0, 1]},
    "threads": [["MainThread", True, []]],
}


@pytest.fixture
def worker() -> Iterator[WatchedWorker]:
    with socket.socket() as link:
        worker = WatchedWorker(link)
        worker.take(b'{"pid":7,"rank":3}\n')
        yield worker


def line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_answers_arrive_in_pieces_of_any_size(worker: WatchedWorker, size: int) -> None:
    text = line({"records": []}) + line(ANSWER) + line({"records": [{"pg_status": STATUS}]})
    for start in range(0, len(text), size):
        worker.take(text[start : start + size])
    assert (worker.pid, worker.rank) == (7, 3)
    assert worker.numbers == {"0/0": [5, 4]}
    assert worker.everything["members"] == {"0": [0, 1]}


def test_an_answer_to_all_has_the_numbers_too(worker: WatchedWorker) -> None:
    """Else nobody would notice that a job which stood still moves again: it is asked nothing else then."""
    worker.take(line(ANSWER))
    assert worker.numbers == {"0/0": [5, 4]}
    assert worker.answered > 0


@pytest.mark.parametrize(
    "text", [b"x\n", b"[]\n", b"{}\n", b'{"records": 3}\n', b'{"records": [3]}\n', b"\n", b"\xff\n"]
)
def test_what_is_no_answer_is_refused(worker: WatchedWorker, text: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        worker.take(text)


def test_an_answer_without_an_end_is_refused(worker: WatchedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_request, "LARGEST", 100)
    with pytest.raises(ValueError, match="too long"):
        worker.take(b"x" * 101)


@pytest.mark.parametrize("content", [None, ["KeyError", "'lr'", [["own.py", 3, "main"]]]])
def test_how_its_program_ends_is_no_answer(worker: WatchedWorker, content: object) -> None:
    worker.take(line(ANSWER) + line({"uncaught": content}))
    assert worker.ended == (ProgramEnd("KeyError: 'lr'", "own.py:3 in main") if content else ProgramEnd())
    assert worker.everything["members"] == {"0": [0, 1]}
