"""Our own stdout and stderr, where what all ranks print meets what the launcher says: whole lines, prompts and progress bars; how
wide the terminal is; and which of its last rows may still change. No error in writing there may stop the training.
"""

import os
import re
import select
import sys
import textwrap
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.printable import printable


def say(line: str) -> None:
    """Print a line of the launcher's own, on a terminal in as many rows as it needs."""
    error, text = sys.stderr.fileno(), printable(line)
    write_own(fold("slipway: ", text, columns_of(error)) if os.isatty(error) else f"slipway: {text}")


def write_own(text: str) -> None:
    """Write lines to stderr as they are, from the start of a row."""
    error = sys.stderr.fileno()
    start = "\n" if is_within_line(error) else ""
    write_out(f"{start}{text}\n".encode(errors="replace"), error)


def short_path(path: Path) -> str:
    """A path as one would type it here."""
    with suppress(FileNotFoundError, ValueError):  # the working directory is gone, or the path is elsewhere
        return str(path.relative_to(Path.cwd()))
    return str(path)


PAUSE = 0.5  # s between two checks whether to wait for our reader any longer
_begun: set[tuple[int, int]] = set()  # files whose last line has no end yet


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
                rest = rest[os.write(out, rest[: select.PIPE_BUF]) :]  # as much as select promises to fit
            elif give_up():
                return False
        except BlockingIOError:
            continue
        except OSError:
            return True
    if text:
        _note(out, begun=not text.endswith(b"\n"))
    return True


def is_within_line(out: int) -> bool:
    """Whether the last line in a file of ours has no end."""
    return _identity(out) in _begun


def end_line(out: int) -> None:
    """Note that the line was ended by something else, as by a terminal at Enter."""
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


ERASE_LINE, ERASE_ABOVE = b"\r\x1b[2K", b"\x1b[A\x1b[2K"


class Console:
    """Whole lines, lines without an end such as prompts, and on a terminal a progress bar below them.

    A row is kept one column short of the terminal: some terminals wrap as soon as the last column is written, and a bar that was
    wrapped would be drawn below itself at every step. `give_up`: whether to drop what our own reader does not take rather than
    wait for it.
    """

    def __init__(self, terminal: bool, give_up: Callable[[], bool]) -> None:
        self.terminal = terminal
        self._give_up = give_up
        self._stalled = False
        self._bar = self._drawn = b""
        # By file the line without an end: its descriptor and text.
        self._open: dict[tuple[int, int], tuple[int, bytes]] = {}

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
                end_line(error)  # the cursor is at the start of an empty one

    def _put(self, prefix: bytes, text: bytes, out: int, end: bytes) -> None:
        opened, begun = self._open.pop(_identity(out), (-1, b""))
        if not end:
            self._open[_identity(out)] = out, prefix + text
        if opened == out and (prefix + text).startswith(begun):
            before, rest = b"", (prefix + text)[len(begun) :]
            if not is_within_line(out):  # an answer was typed, or the launcher printed something
                rest = prefix + rest
        else:
            before, rest = self._wipe(out), prefix + text
        bar = b"\r" + self._bar if self._bar and end and os.isatty(out) else b""
        if bar:
            self._drawn = self._bar
        self._write(before + rest + end + bar, out)

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


def terminal_variables() -> dict[str, str]:
    """Variables that describe, to libraries that write to our pipes, the terminal on which their progress bars are shown."""
    with suppress(OSError):
        size = os.get_terminal_size(sys.stderr.fileno())
        rows = {"COLUMNS": str(size.columns), "LINES": str(size.lines)} if size.columns and size.lines else {}
        # rich shows what moves on a terminal only (https://rich.readthedocs.io/en/stable/console.html#environment-variables).
        return rows | ({"TTY_COMPATIBLE": "1"} if os.isatty(sys.stdout.fileno()) else {})
    return {}


USUAL = (
    80  # columns, where a terminal has no size (`docker run --tty` in its first moment, a pseudo-terminal of a program)
)
_STYLE = re.compile(r"(\x1b\[[\d;?]*[A-Za-z])")  # takes no room


def columns_of(out: int) -> int:
    """How wide the terminal of a file descriptor is now."""
    with suppress(OSError):
        if columns := os.get_terminal_size(out).columns:
            return columns
    return USUAL


def cut(text: bytes, columns: int) -> bytes:
    """The rows of a text without what would not fit; colours stay, also the end of a colour after the cut."""
    return "\n".join(_cut_row(row, columns) for row in text.decode(errors="replace").split("\n")).encode()


def _cut_row(row: str, columns: int) -> str:
    kept, room = [], columns
    for part in _STYLE.split(row):
        if part.startswith("\x1b"):
            kept.append(part)
            continue
        for letter in part:
            room -= _width(letter)
            if room < 0:
                break
            kept.append(letter)
    return "".join(kept)


def rows_taken(text: bytes, columns: int) -> int:
    """How many rows a text takes on a terminal, which may have become narrower since it was drawn."""
    rows = _STYLE.sub("", text.decode(errors="replace")).split("\n")
    return sum(max(1, -(-sum(map(_width, row)) // columns)) for row in rows)


def _width(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 0 if unicodedata.combining(letter) else 1


def fold(prefix: str, text: str, columns: int) -> str:
    """A line in as many rows as it needs, broken between words, with what follows the first set in below its text."""
    if len(prefix) + len(text) <= columns:
        return prefix + text
    rows = textwrap.wrap(
        text, max(columns, 1), initial_indent=prefix, subsequent_indent=" " * len(prefix),
        replace_whitespace=False, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(rows) if rows else prefix + text


def fold_error(prefix: str, text: str, columns: int) -> str:
    """The same for an error. The command to type stays in one row of its own, whatever its length, so that it can be copied."""
    said, separator, command = text.partition(" Type: ")
    if not separator or len(prefix) + len(text) <= columns:
        return fold(prefix, text, columns)
    return f"{fold(prefix, said, columns)}\n{' ' * len(prefix)}Type: {command}"


MOST_ROWS = 100  # that a cursor is followed up; terminals are no higher
_TOKEN = re.compile(rb"[^\r\n\x1b]+|\r|\n|\x1b\[([\d;?]{0,20})([A-Za-z])|\x1b")
_HALF = re.compile(rb"\x1b(\[[\d;?]{0,20})?\Z")  # of an escape sequence
_MOVES = re.compile(rb"\r|\x1b\[[\d;?]{0,20}[ABGHJK]")


class ScreenRow(NamedTuple):
    """A row of text; `bar` says that it was written over."""

    text: bytes
    bar: bool


class Screen:
    """The rows of a program's output that may still change. A newline in the last of them finishes all.

    A progress bar moves its cursor to the start of the row (tqdm, `print(end="\r")`) or up to earlier rows (several bars, rich)
    and writes again. A log should hold what a terminal would show in the end.
    """

    def __init__(self) -> None:
        self._rows, self._at = [ScreenRow(b"", bar=False)], 0
        self._anew = False  # the next text replaces the row
        self._half = b""
        self.over = False  # the cursor has come below the last bar

    @property
    def rows(self) -> list[bytes]:
        """Their text."""
        return [row.text.rstrip() if self.bar else row.text for row in self._rows]

    @property
    def bar(self) -> bool:
        """Whether they are being written over."""
        return self._anew or len(self._rows) > 1 or self._rows[0].bar

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(row.text) for row in self._rows)

    def feed(self, chunk: bytes) -> list[ScreenRow]:
        """Take more output; returns the rows that are finished, without those that a bar left blank."""
        chunk, self._half = self._half + chunk, b""
        if half := _HALF.search(chunk):
            chunk, self._half = chunk[: half.start()], half[0]
        if not self.bar and not _MOVES.search(chunk):  # nearly all output
            *lines, rest = (self._rows[0].text + chunk).split(b"\n")
            self._rows[0] = ScreenRow(rest, bar=False)
            return [ScreenRow(line, bar=False) for line in lines]
        finished: list[ScreenRow] = []
        for token in _TOKEN.finditer(chunk):
            over, self.over = self.over, False
            match token[0], token[2]:
                case b"\r", _:
                    self._return()
                case b"\n", _:
                    finished += self._newline()
                case _, b"A":
                    self._up(int(token[1]) if token[1].isdigit() else 1)
                case _, b"B":
                    self._at, self._anew = min(self._at + 1, len(self._rows) - 1), True
                case _, b"J" | b"K" if self._anew or token[1] == b"2":
                    self._rows[self._at], self._anew = ScreenRow(b"", bar=True), True
                case _, b"G" | b"H" | b"J" | b"K":
                    self._anew = self._anew or token[2] in b"GH"
                case text, _:
                    if over:
                        finished += self.finish()
                    row = self._rows[self._at]
                    self._rows[self._at] = (
                        ScreenRow(text, bar=True) if self._anew else ScreenRow(row.text + text, row.bar)
                    )
                    self._anew = False
        return finished

    def finish(self) -> list[ScreenRow]:
        """End: return the rows that are left, without blank ones."""
        self._half, self.over = b"", False
        return [row for row in self._take() if row.text]

    def _take(self) -> list[ScreenRow]:
        rows = [ScreenRow(row.text.rstrip(), row.bar) if row.bar else row for row in self._rows]
        self._rows, self._at, self._anew = [ScreenRow(b"", bar=False)], 0, False
        return rows

    def _return(self) -> None:
        row = self._rows[self._at]
        if row.text and not row.text.strip():  # a bar that was taken away: what follows is something else
            self._rows[self._at], self._anew = ScreenRow(b"", bar=False), False
        else:
            self._anew = True

    def _newline(self) -> list[ScreenRow]:
        if self._at + 1 < len(self._rows):
            self._at, self._anew = self._at + 1, True
            self.over = all(row.text.isspace() for row in self._rows[self._at :])  # as tqdm takes bars away
            return []
        return [row for row in self._take() if row.text or not row.bar]

    def _up(self, rows: int) -> None:
        """Move up, where the rows there are finished to rows that are blank."""
        missing = min(rows, MOST_ROWS - len(self._rows)) - self._at
        self._rows = [ScreenRow(b"", bar=True)] * missing + self._rows
        self._at, self._anew = max(self._at + max(missing, 0) - rows, 0), True
