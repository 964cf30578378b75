"""Text from elsewhere, made safe to print (workers, files that others may write, and other nodes may send anything), and numbers
of ranks or nodes as people read them. Pure.
"""

import re
from collections.abc import Iterable
from itertools import groupby

# Colours and cursor movements go; other control characters, and those that turn the direction of text, are shown as odd.
_TURNING = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"\x1b\[[0-9;?]*[A-Za-z]|(?P<odd>[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNING}])")


def printable(text: str) -> str:
    """The text without what would do something to a terminal or turn the order of its characters; tabs and newlines stay."""
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: "\ufffd" if found["odd"] else "", text)


def last_line(lines: Iterable[str]) -> str:
    """The last line that is not empty; empty where none is."""
    return next((line.strip() for line in reversed([*lines]) if line.strip()), "")


MOST = 20  # parts of a text; a job may have thousands of ranks


def rank_ranges(ranks: Iterable[int]) -> str:
    """Numbers in their order, three or more in a row as a range: `0, 3-7`; after MOST parts only how many more."""
    parts: list[tuple[str, int]] = []  # with the number of ranks that each has
    for _, neighbours in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in neighbours]
        parts += [(f"{run[0]}-{run[-1]}", len(run))] if len(run) > 2 else [(str(rank), 1) for rank in run]
    more = sum(many for _, many in parts[MOST:])
    return ", ".join(text for text, _ in parts[:MOST]) + (f" and {more} more" if more else "")
