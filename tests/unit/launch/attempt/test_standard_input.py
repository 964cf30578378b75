"""Our stdin on its way to rank 0: a terminal's goes through a pipe, anything else is handed on."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.launch.attempt import worker_output as module
from slipway.launch.attempt.worker_output import StandardInput


class Typing:
    """A terminal that is our stdin, and what comes of what is typed there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, self.theirs = os.openpty()
        tty.setcbreak(self.theirs)
        monkeypatch.setattr(module, "STDIN", self.theirs)
        self.selector = selectors.DefaultSelector()
        self.stdin = StandardInput(self.selector, wanted=True)
        self.child = os.dup(self.stdin.file)
        os.set_blocking(self.child, False)
        self.stdin.hand_on()

    def type(self, text: bytes) -> None:
        os.write(self.keys, text)
        self.go_on()

    def go_on(self) -> None:
        """A look, and then whatever is there is read."""
        self.stdin.poll()
        while self.selector.get_map() and (ready := self.selector.select(0.05)):
            for key, _ in ready:
                key.data()

    @property
    def listening(self) -> bool:
        return bool(self.selector.get_map())


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typing]:
    """A terminal in the foreground of which we are."""
    terminal = Typing(monkeypatch)
    yield terminal
    terminal.stdin.close()
    for file in (terminal.keys, terminal.theirs, terminal.child):
        os.close(file)


def test_what_is_typed_comes_to_the_child(typing: Typing) -> None:
    typing.type(b"one\n")
    assert os.read(typing.child, 100) == b"one\n"
    typing.type(b"two\n")
    assert os.read(typing.child, 100) == b"two\n"


def test_what_nobody_reads_stays_in_the_terminal(typing: Typing) -> None:
    lines = [b"%04d" % number + b"x" * 1000 + b"\n" for number in range(100)]
    for line in lines:
        typing.type(line)
        if not typing.listening:
            break
    else:
        pytest.fail("the pipe holds less")
    came = b""
    while True:
        try:
            came += os.read(typing.child, 100_000)
        except BlockingIOError:
            break
        typing.go_on()
    assert came == b"".join(lines[: came.count(b"\n")])
    assert came.endswith(line), "what was typed last"


def test_in_the_background_nothing_is_read(typing: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_foreground", lambda: False)
    typing.type(b"for the shell\n")
    assert not typing.listening
    monkeypatch.undo()
    monkeypatch.setattr(module, "STDIN", typing.theirs)
    typing.go_on()
    assert os.read(typing.child, 100) == b"for the shell\n"


def test_a_child_that_reads_no_more_is_no_error(typing: Typing) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, typing.child)
    os.close(null)
    typing.type(b"late\n")
    typing.type(b"later\n")
    assert not typing.listening


def test_at_the_end_the_child_sees_the_end(typing: Typing) -> None:
    typing.type(b"last\n")
    typing.stdin.close()
    assert (os.read(typing.child, 100), os.read(typing.child, 100)) == (b"last\n", b"")
    typing.stdin.poll()
    assert not typing.listening


def test_a_file_is_handed_on_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(module, "STDIN", file)
    with selectors.DefaultSelector() as selector:
        stdin = StandardInput(selector, wanted=True)
        assert stdin.file == file
        stdin.hand_on()
        stdin.poll()
        assert not selector.get_map()
        stdin.close()
        assert StandardInput(selector, wanted=False).file == subprocess.DEVNULL
        monkeypatch.setattr(sys, "stdin", None)
        assert StandardInput(selector, wanted=True).file == subprocess.DEVNULL, "closed, as some daemons have it"
    os.close(file)
