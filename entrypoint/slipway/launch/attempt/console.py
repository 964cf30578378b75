"""Our own stdout and stderr, where what all ranks print meets what the launcher says. Nothing that goes wrong with writing
there may stop the training."""

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress

from slipway.launch.attempt.width import columns_of, cut, rows_taken

PAUSE = 0.5  # s between two looks at whether we should go on waiting for our reader
ERASE_LINE, ERASE_ABOVE = b"\r\x1b[2K", b"\x1b[A\x1b[2K"

_begun: set[tuple[int, int]] = set()  # files in which the last line has no end yet


class Console:
    """Whole lines, lines without an end such as prompts, and on a terminal a progress bar below them.

    `give_up`: whether to drop what our own reader does not take rather than wait for it.
    """

    def __init__(self, terminal: bool, give_up: Callable[[], bool]) -> None:
        self.terminal = terminal
        self._give_up = give_up
        self._stalled = False
        self._bar = self._drawn = b""
        self._open: dict[
            tuple[int, int], tuple[int, bytes]
        ] = {}  # by file the line without an end: its descriptor and text

    def line(self, prefix: bytes, text: bytes, out: int) -> None:
        """Write a whole line to a file descriptor, or the rest of it where that was begun."""
        self._put(prefix, text, out, b"\n")

    def begin(self, prefix: bytes, text: bytes, out: int) -> None:
        """Write what there is so far of a line. Where other output comes between, it is begun again."""
        self._put(prefix, text, out, b"")

    def bar(self, text: bytes) -> None:
        """Show the newest state of the progress bar, in one row or several; empty text ends it."""
        error = sys.stderr.fileno()
        if self.terminal and (text := cut(text, columns_of(error) - 1)) != self._bar:
            before = self._wipe(error)
            self._bar = self._drawn = text
            self._open.pop(_identity(error), None)
            self._write(before + (b"\r" + text if text else b""), error)
            if not text:
                end_line(error)  # the cursor stands at the start of an empty one

    def _put(self, prefix: bytes, text: bytes, out: int, end: bytes) -> None:
        opened, begun = self._open.pop(_identity(out), (-1, b""))
        if not end:
            self._open[_identity(out)] = out, prefix + text
        if opened == out and (prefix + text).startswith(begun):
            before, rest = b"", (prefix + text)[len(begun) :]
            if not is_within_line(out):  # somebody has typed an answer, or the launcher said something
                rest = prefix + rest
        else:
            before, rest = self._wipe(out), prefix + text
        behind = b"\r" + self._bar if self._bar and end and os.isatty(out) else b""
        if behind:
            self._drawn = self._bar
        self._write(before + rest + end + behind, out)

    def _wipe(self, out: int) -> bytes:
        """What leads to the start of an empty line."""
        if not is_within_line(out):
            return b""
        if not self._drawn or not os.isatty(out):
            return b"\n"
        rows, self._drawn = rows_taken(self._drawn, columns_of(out)), b""
        return ERASE_LINE + ERASE_ABOVE * (rows - 1)

    def _write(self, text: bytes, out: int) -> None:
        # A reader that we gave up once is not waited for with every line again.
        self._stalled = not write_out(text, out, self._give_up, 0 if self._stalled else PAUSE)


def write_out(text: bytes, out: int, give_up: Callable[[], bool] = lambda: True, pause: float = PAUSE) -> bool:
    """Write to our stdout or stderr; where its reader is gone or its disk full the text is lost, and nothing else.

    A reader that pauses (`| less`) makes us wait, until `give_up` is true: a launcher that was asked to stop must not hang
    on its output; then the answer is False. Not through Python's streams: what they could not write they try again at
    exit, and make the exit code 120.
    """
    rest = memoryview(text)
    while rest:
        try:
            if select.select([], [out], [], pause)[1]:
                rest = rest[os.write(out, rest[: select.PIPE_BUF]) :]  # so much fits where select says that it does
            elif give_up():
                return False
        except BlockingIOError:
            continue
        except OSError:
            return True
    if text:
        _note(out, begun=not text.endswith(b"\n"))
    return True


def terminal_variables() -> dict[str, str]:
    """Variables by which libraries behind our pipes know the terminal on which their progress bars are shown."""
    with suppress(OSError):
        size = os.get_terminal_size(sys.stderr.fileno())
        rows = {"COLUMNS": str(size.columns), "LINES": str(size.lines)} if size.columns and size.lines else {}
        # rich shows what moves on a terminal only (https://rich.readthedocs.io/en/stable/console.html#environment-variables).
        return rows | ({"TTY_COMPATIBLE": "1"} if os.isatty(sys.stdout.fileno()) else {})
    return {}


def is_within_line(out: int) -> bool:
    """Whether the last line in a file of ours has no end."""
    return _identity(out) in _begun


def end_line(out: int) -> None:
    """Take note that somebody else, as a terminal does at Enter, ended the line."""
    _note(out, begun=False)


def _note(out: int, *, begun: bool) -> None:
    (_begun.add if begun else _begun.discard)(_identity(out))


def _identity(out: int) -> tuple[int, int]:
    """Which file a descriptor leads to: stdout and stderr are often the same."""
    try:
        found = os.fstat(out)
    except OSError:
        return -1, out
    return found.st_dev, found.st_ino
