"""Text from elsewhere, made safe to print (paths may hold any bytes; workers, files that others may write, and other nodes may
send anything), and numbers of ranks or nodes and times as people read them. Pure.
"""

import datetime
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

# Colours and cursor movements are removed. Other control characters, those that change the direction of text, and surrogates,
# which UTF-8 cannot hold, are replaced.
_TURNING = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL = rf"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNING}\ud800-\udfff]"


def printable(text: object) -> str:
    """Return a text, path or name without what would do something to a terminal; tabs and newlines stay.

    Bytes of a path that are not UTF-8 are spelt out: `caf\\xe9.png`.
    """
    text = str(text)
    return text if text.isprintable() else re.sub(_CONTROL, _shown, text)


def _shown(found: re.Match[str]) -> str:
    if len(found[0]) > 1:
        return ""
    byte = ord(found[0]) - 0xDC00  # as Python's surrogateescape stores it
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else "\ufffd"


def one_line(text: object) -> str:
    """Return the same on one line."""
    return printable(text).translate({ord("\n"): " ", ord("\t"): " "})


def listed(names: Sequence[object], most: int) -> str:
    """Return the first `most` names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(printable, names[:most])) + more


def counted(number: int, noun: str) -> str:
    """A number of things: `1 document`, `2,000 batches`."""
    several = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}{several}"


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


def utc(seconds: float) -> str:
    """A time in unix seconds as people read it; whatever a file says."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"at {seconds:.0f} s"
