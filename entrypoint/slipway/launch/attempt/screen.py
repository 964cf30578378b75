"""What of a program's output may still change: a terminal's last rows, written over by progress bars. Pure.

A bar moves its cursor to the start of the row (tqdm, `print(end="\\r")`) or up to earlier rows (several bars, rich) and writes
anew. What a terminal would show in the end is what a log should hold.
"""

import re
from typing import NamedTuple

MOST_ROWS = 100  # that a cursor is followed up; terminals are no higher
_TOKEN = re.compile(rb"[^\r\n\x1b]+|\r|\n|\x1b\[([\d;?]{0,20})([A-Za-z])|\x1b")
_HALF = re.compile(rb"\x1b(\[[\d;?]{0,20})?\Z")  # of an escape sequence
_MOVES = re.compile(rb"\r|\x1b\[[\d;?]{0,20}[ABGHJK]")


class Row(NamedTuple):
    """A row of text; `bar` says that it was written over."""

    text: bytes
    bar: bool


class Screen:
    """The rows that are not finished. A newline in the last of them finishes all."""

    def __init__(self) -> None:
        self._rows, self._at = [Row(b"", bar=False)], 0
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

    def feed(self, chunk: bytes) -> list[Row]:
        """Take more output; returns the rows that are finished, without those that a bar left blank."""
        chunk, self._half = self._half + chunk, b""
        if half := _HALF.search(chunk):
            chunk, self._half = chunk[: half.start()], half[0]
        if not self.bar and not _MOVES.search(chunk):  # nearly all output
            *lines, rest = (self._rows[0].text + chunk).split(b"\n")
            self._rows[0] = Row(rest, bar=False)
            return [Row(line, bar=False) for line in lines]
        finished: list[Row] = []
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
                    self._rows[self._at], self._anew = Row(b"", bar=True), True
                case _, b"G" | b"H" | b"J" | b"K":
                    self._anew = self._anew or token[2] in b"GH"
                case text, _:
                    if over:
                        finished += self.finish()
                    row = self._rows[self._at]
                    self._rows[self._at] = Row(text, bar=True) if self._anew else Row(row.text + text, row.bar)
                    self._anew = False
        return finished

    def finish(self) -> list[Row]:
        """All rows as they stand, without blank ones: no more comes of them."""
        self._half, self.over = b"", False
        return [row for row in self._take() if row.text]

    def _take(self) -> list[Row]:
        rows = [Row(row.text.rstrip(), row.bar) if row.bar else row for row in self._rows]
        self._rows, self._at, self._anew = [Row(b"", bar=False)], 0, False
        return rows

    def _return(self) -> None:
        row = self._rows[self._at]
        if row.text and not row.text.strip():  # a bar that was taken away: what follows is something else
            self._rows[self._at], self._anew = Row(b"", bar=False), False
        else:
            self._anew = True

    def _newline(self) -> list[Row]:
        if self._at + 1 < len(self._rows):
            self._at, self._anew = self._at + 1, True
            self.over = all(row.text.isspace() for row in self._rows[self._at :])  # as tqdm takes bars away
            return []
        return [row for row in self._take() if row.text or not row.bar]

    def _up(self, rows: int) -> None:
        """Move up, where the rows there are finished to rows that are blank."""
        missing = min(rows, MOST_ROWS - len(self._rows)) - self._at
        self._rows = [Row(b"", bar=True)] * missing + self._rows
        self._at, self._anew = max(self._at + max(missing, 0) - rows, 0), True
