"""Text from elsewhere, made safe to print: workers, files that others may write, and other nodes may say anything."""

import re
from collections.abc import Iterable

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
