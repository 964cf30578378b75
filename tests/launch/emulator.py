"""As much of a terminal as our output needs: text, line ends, cursors that return or go up, rows that are erased."""

from __future__ import annotations

import re
import unicodedata

TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\r|\n|[^\r\n\x1b]")


class Emulator:
    """All rows that were shown, as if nothing had scrolled away; `wrapped` are those that were longer than the screen."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.wrapped: list[str] = []
        self._rows, self._row, self._column = [""], 0, 0

    @property
    def rows(self) -> list[str]:
        """Without blank ones at the end."""
        rows = [row.rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def lines(self) -> list[str]:
        """One row of each line that any machine shows.

        Warnings are a machine's own: a small /dev/shm, a rank that others slow down. Rows that are set in continue the line
        before them, which is longer where a rank is slow.
        """
        return [row for row in self.rows if not row.startswith("      ") and "warning: " not in row]

    def show(self, text: str) -> Emulator:
        """Take output; it wraps as soon as a row is full, as the strictest terminals do."""
        for token in TOKEN.finditer(text):
            match token[0], token[2]:
                case "\r", _:
                    self._column = 0
                case "\n", _:
                    self._down()
                case _, "A":
                    self._row = max(0, self._row - int(token[1] or 1))
                case _, "K":
                    self._rows[self._row] = "" if token[1] == "2" else self._rows[self._row][: self._column]
                case letter, None:
                    self._put(letter)
        return self

    def _put(self, letter: str) -> None:
        row = f"{self._rows[self._row]:<{self._column}}"
        self._rows[self._row] = row[: self._column] + letter + row[self._column + 1 :]
        self._column += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if self._column > self.columns:
            self.wrapped.append(self._rows[self._row])
            self._column = 0
            self._down()

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
