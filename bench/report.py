"""What a bench says: tables, targets that are met or missed, and the same as JSON for `make bench`.

Every script takes the same options: --rounds, --smoke (one short round of everything, to see that it still runs; targets
are not judged), --json FILE.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sides import Spread, machine

ROUNDS = 8  # fewer say nothing about the spread


@dataclass(frozen=True)
class Table:
    """Rows of texts under `columns`; the first column names the row."""

    heading: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Target:
    """What was to reach. `limit` is the least, or with `at_most` the most; `reason` says what bounds one that is missed."""

    what: str
    value: Spread
    limit: float
    unit: str = "×"
    at_most: bool = False
    reason: str = ""

    @property
    def met(self) -> bool:
        """Whether the median is within the limit."""
        return self.value.median <= self.limit if self.at_most else self.value.median >= self.limit

    def __str__(self) -> str:
        """As the terminal shows it."""
        told = "met" if self.met else f"missed: {self.reason or 'unexplained'}"
        return (
            f"{self.what}: {self.value} {self.unit}, {'at most' if self.at_most else 'at least'} {self.limit}: {told}"
        )


@dataclass
class Report:
    """Says at once what it is told, and keeps it for the end."""

    title: str
    about: str  # how it was measured, in a sentence or two
    options: argparse.Namespace
    machine: str = ""
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Say what is measured, and where."""
        self.machine = machine(self.options.rounds)
        print(f"== {self.title}\n{self.about}\n{self.machine}", flush=True)

    def table(self, heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; its columns are aligned on the terminal."""
        self.tables.append(Table(heading, list(columns), [list(row) for row in rows]))
        widths = [max(len(line[at]) for line in [columns, *rows]) for at in range(len(columns))]
        print(f"\n{heading}")
        for line in [columns, *rows]:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        sys.stdout.flush()

    def target(
        self, what: str, value: Spread, limit: float, unit: str = "×", *, at_most: bool = False, reason: str = ""
    ) -> None:
        """Add a target; one that is missed needs a `reason`."""
        self.targets.append(Target(what, value, limit, unit, at_most, reason))
        print(f"  {self.targets[-1]}" if not self.options.smoke else f"  {what}: not judged", flush=True)

    def note(self, text: str) -> None:
        """Add a sentence."""
        self.notes.append(text)
        print(text, flush=True)

    def close(self) -> int:
        """Write the JSON where one is asked for. Returns 1 where a target is missed without a reason, else 0."""
        if self.options.json:
            told = {name: value for name, value in asdict(self).items() if name != "options"}
            for kept, target in zip(told["targets"], self.targets, strict=True):
                kept["met"] = target.met
            self.options.json.write_text(json.dumps(told, indent=1) + "\n")
        if self.options.smoke:
            return 0
        return int(any(not target.met and not target.reason for target in self.targets))


def options_parser(about: str | None) -> argparse.ArgumentParser:
    """The options of every bench; `about` is the script's own docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smoke", action="store_true", help="one short round of everything; no target is judged")
    parser.add_argument("--json", type=Path, help="write what is said to this file as well")
    return parser


def read_options(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was typed; with --smoke a single round."""
    options = parser.parse_args(words)
    if options.smoke:
        options.rounds = 1
    return options
