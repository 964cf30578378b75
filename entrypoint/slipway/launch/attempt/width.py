"""How much of a text a terminal shows in a row. Pure but for asking how wide the terminal is.

A row is kept one column short of the terminal: some wrap as soon as the last column is written, and a bar that was wrapped
would be drawn below itself at every step.
"""

import os
import re
import textwrap
import unicodedata
from contextlib import suppress

USUAL = 80  # columns, where a terminal does not say (`docker run --tty` in its first moment, a pseudo-terminal of a program)
_STYLE = re.compile(r"(\x1b\[[\d;?]*[A-Za-z])")  # takes no room


def columns_of(out: int) -> int:
    """How wide the terminal behind a file descriptor is now; a resize is seen the next time."""
    with suppress(OSError):
        if columns := os.get_terminal_size(out).columns:
            return columns
    return USUAL


def cut(text: bytes, columns: int) -> bytes:
    """The rows of a text without what would not fit; colours stay, the end of a colour behind the cut as well."""
    return "\n".join(_cut_row(row, columns) for row in text.decode(errors="replace").split("\n")).encode()


def rows_taken(text: bytes, columns: int) -> int:
    """How many rows a text takes on a terminal, which may have become narrower since it was drawn."""
    rows = _STYLE.sub("", text.decode(errors="replace")).split("\n")
    return sum(max(1, -(-sum(map(_width, row)) // columns)) for row in rows)


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
    """The same for an error. What it says to type stays in one row of its own, whatever its length: it is copied."""
    said, told, command = text.partition(" Type: ")
    if not told or len(prefix) + len(text) <= columns:
        return fold(prefix, text, columns)
    return f"{fold(prefix, said, columns)}\n{' ' * len(prefix)}Type: {command}"


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


def _width(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 0 if unicodedata.combining(letter) else 1
