"""Shares of the tests (PART=k/n), and tests in quarantine."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

QUARANTINED = "quarantine"  # the mark, and the property of a test case in pytest's XML
MOST_QUARANTINED = 5


@dataclass(frozen=True)
class Share:
    """The k-th of n shares of the test files and make targets, k from 1 to n. A file always falls into the same share."""

    number: int
    of: int

    def has(self, name: str) -> bool:
        """Whether a file or target belongs to it: a checksum of the name decides, so that a new file moves no other."""
        return zlib.crc32(name.encode()) % self.of == self.number - 1

    def __str__(self) -> str:
        """As PART has it."""
        return f"{self.number}/{self.of}"


def read_share(environ: Mapping[str, str]) -> Share | None:
    """The share that PART names, None without it. ValueError where it is none."""
    text = environ.get("PART", "")
    if not text:
        return None
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"PART={text} is no share. Type for example PART=1/4")
    return Share(int(number), int(of))


@dataclass(frozen=True)
class Quarantine:
    """Why the failure of a test does not count, and the day from which it counts again."""

    reason: str
    until: date

    @classmethod
    def read(cls, reason: str, until: str) -> Quarantine:
        """From the mark's two arguments, the day as YYYY-MM-DD. ValueError where it is none, or the reason is empty."""
        if not reason:
            raise ValueError("a quarantine needs a reason")
        return cls(reason, date.fromisoformat(until))

    def is_over(self, today: date) -> bool:
        """Whether the test's failure counts."""
        return today >= self.until

    def __str__(self) -> str:
        """For the closing table."""
        return f"{self.reason} (until {self.until})"
