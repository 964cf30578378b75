"""Where a process stands that does not answer itself, seen from outside by py-spy, or by what stands in for it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from slipway.launch.hangs.stack_dump import read_stack_dump
from slipway.launch.hangs.stack_request import PySpy, find_program, read_dump

THREADS: list[dict[str, Any]] = [
    {"thread_name": None, "os_thread_id": 8, "frames": []},
    {
        "thread_name": "MainThread",
        "os_thread_id": 7,
        "frames": [{"filename": "/home/me/user.py", "line": 6, "name": "load", "module": None}],
    },
]


def stand_in(folder: Path, text: str) -> str:
    """A program that takes the place of py-spy."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def look(program: str) -> PySpy:
    outside = PySpy([7], program)
    wait_until(lambda: outside.over, "the end of py-spy")
    return outside


def test_it_is_read_like_an_answer_of_the_watcher(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(json.dumps(THREADS))
    outside = look(stand_in(tmp_path, f'echo "$@" >{tmp_path}/typed; cat {tmp_path}/dump.json'))
    assert (tmp_path / "typed").read_text() == "dump --nonblocking --json --full-filenames --pid 7\n"
    one = read_stack_dump(1, 0, outside.answers[7], state="does not answer")
    assert one.place == "is at user.py:6 load(), and does not answer"
    assert [name for name, _, _ in outside.answers[7]["threads"]] == ["", "MainThread"]


@pytest.mark.parametrize("text", ["exit 1", "echo '{'", "echo '[{}]'", "echo '7'", "kill -9 $$", "echo null"])
def test_what_fails_leaves_nothing(tmp_path: Path, text: str) -> None:
    assert look(stand_in(tmp_path, text)).answers == {}


def test_without_py_spy_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.launch.hangs.stack_request.find_program", lambda: None)
    outside = PySpy([7])
    assert outside.over
    assert outside.answers == {}


def test_our_environment_has_it() -> None:
    """It is a dependency; `make setup` installs it."""
    assert find_program() is not None


def test_a_dump_that_makes_no_sense_is_refused() -> None:
    with pytest.raises((KeyError, TypeError)):
        read_dump([{"frames": [{}], "os_thread_id": 7}], 7)
