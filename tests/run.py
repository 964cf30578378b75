"""`make test`: every section of the tests that this machine can run, and one table at the end.

    .venv/bin/python tests/run.py [SECTION …] [-- ARGUMENTS OF PYTEST]

Runs the core of each section, the tests marked `core`; FULL=1 runs all of it, and arguments of pytest's pick among all. A section
whose needs (needs.py) this machine lacks is skipped; with STRICT=1 that is a failure if a Debian machine with root could have
them. A section that fails does not hide the others. Whole jobs that share two cores can be late by chance: where no more than
AGAIN tests of a section failed, they run once more by themselves, and the table names those that pass only then. Ends with 0 where
everything that ran passed, else with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import needs
from sections import ROOT, SECTIONS, TURNS, Section

FULL, STRICT = bool(os.environ.get("FULL")), bool(os.environ.get("STRICT"))
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
AGAIN = 3  # tests of a section; where more fail, it is no chance
WITHIN = {
    "skipped": "skipped within the sections",
    "again": "failed beside others, and passed at the second try, by itself",
    "failed": "failed within the sections",
}
NOTHING_PICKED = 5  # pytest's exit code where its arguments left no test
INTERRUPTED = 130


@dataclass
class Result:
    """How a section ended, or why it was skipped: its tests counted by their ends, the failed ones by name, those that passed
    only at the second try, the reasons of those skipped, and its seconds."""

    word: str
    why: str = ""
    tests: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Run:
    """One call of `make test`. `results` holds how each section ended, by its name."""

    def __init__(self, wanted: list[str], arguments: list[str], folder: Path) -> None:
        self._wanted, self._arguments, self._folder = wanted, arguments, folder
        self._printing = Lock()
        self.results: dict[str, Result] = {}

    def run(self) -> None:
        """Run what is wanted, turn by turn."""
        for turn in TURNS:
            rows = [row for row in ([name for name in row if name in self._wanted] for row in turn) if row]
            beside = len(rows) > 1
            if beside:
                print(
                    f"== {'; beside that '.join(', '.join(row) for row in rows)}: each prints when it is over",
                    flush=True,
                )
            with ThreadPoolExecutor(max(1, len(rows))) as pool:
                list(pool.map(lambda row, beside=beside: [self._end(SECTIONS[name], beside) for name in row], rows))

    def _end(self, section: Section, held: bool) -> None:
        """Run a section to its end; what it prints is `held` back until then where another runs meanwhile."""
        if result := obstacle(section, bool(self._arguments)):
            self.results[section.name] = result
            return
        title = f"== {section.name}: {section.what}"
        if not held:
            print(title, flush=True)
        begun = time.monotonic()
        result, printed = self._call(section, held)
        if result.word == FAILED and 0 < len(result.failed) <= AGAIN:
            second, more = self._call(section, held, again=True)
            result, printed = take_second(result, second), printed + more
        self.results[section.name] = result
        result.seconds = time.monotonic() - begun
        if section.name == "build" and result.word == FAILED:
            os.environ[needs.NO_IMAGE] = "1"
            needs.find_missing.cache_clear()
        with self._printing:
            if held:
                print(title, printed, sep="\n", end="")
            print(f"== {section.name}: {result.word}, {result.seconds:.0f} s", flush=True)

    def _call(self, section: Section, held: bool, again: bool = False) -> tuple[Result, str]:
        """How a section ends, or what of it failed when it is tried `again`; and what it printed, where that is `held` back."""
        file, cache = self._folder / f"{section.name}-{again:d}.xml", self._folder / f"{section.name}.cache"
        done = subprocess.run(
            section.command(sys.executable, self._arguments, FULL, file, cache, again), cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if held else None, stderr=subprocess.STDOUT if held else None, check=False,
        )  # fmt: skip
        return read_result(done.returncode, file), done.stdout.decode(errors="replace") if held else ""


def take_second(first: Result, second: Result) -> Result:
    """How a section ended whose failed tests ran once more."""
    word = PASSED if second.word == PASSED and second.tests["passed"] == len(first.failed) else FAILED
    left = second.failed if second.tests.total() == len(first.failed) else first.failed
    again = [name for name in first.failed if name not in left]
    tests = first.tests + Counter({"passed": len(again)}) - Counter({"failed": len(again)})
    return replace(first, word=word, tests=tests, failed=left, again=again)


def obstacle(section: Section, picked: bool) -> Result | None:
    """Why a section does not run here or now, None where it does; `picked`: arguments of pytest's pick the tests."""
    if section.core == "none" and not FULL and (section.goal or not picked):
        return Result(SKIPPED, "no part of the core: FULL=1 make test")
    for name in section.needs:
        if why := needs.reason(name):
            return Result(FAILED if STRICT and needs.NEEDS[name].demanded else SKIPPED, why)
    return None


def read_result(code: int, file: Path) -> Result:
    """How a section ended, from its exit code and the XML that pytest wrote, if it did."""
    if code == NOTHING_PICKED:
        return Result(SKIPPED, "no test of it was picked")
    result = Result(FAILED if code else PASSED)
    for case in ET.parse(file).iter("testcase") if file.exists() else ():
        ends = {child.tag: child for child in case}
        word = "failed" if ends.keys() & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"
        result.tests[word] += 1
        if word == "failed":
            result.failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        if word == "skipped":
            result.reasons[ends["skipped"].get("message", "")] += 1
    return result


def summary(results: dict[str, Result]) -> list[str]:
    """The table: sections, then what was skipped within them, then what failed, and the sum of all."""
    lines = [f"{'section':<13}{'result':<9}{'tests':>6}{'seconds':>9}"]
    for name, result in results.items():
        ran = result.tests["passed"] + result.tests["failed"]
        seconds = f"{result.seconds:.0f}" if result.seconds else "–"
        lines.append(f"{name:<13}{result.word:<9}{ran or '–':>6}{seconds:>9}  {result.why}".rstrip())
    for word, told in WITHIN.items():
        rows = [(name, *row) for name, result in results.items() for row in list_within(result, word)]
        if rows:
            lines += ["", told]
            lines += [f"{name:<13}{text}{f'  ({count} tests)' if count > 1 else ''}" for name, text, count in rows]
    sums = sum((result.tests for result in results.values()), Counter[str]())
    # A section without tests of its own (lint) counts as one.
    for result in results.values():
        sums[result.word.lower()] += not result.tests and result.word != SKIPPED
    return [*lines, "", f"{sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped"]


def list_within(result: Result, word: str) -> list[tuple[str, int]]:
    """What is told of a section under a word of WITHIN, each with its number of tests."""
    if word == "skipped":
        return list(result.reasons.items())
    return [(name, 1) for name in (result.failed if word == "failed" else result.again)]


def read_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The sections that are named, by default all, in their order and with the image where one needs it; and pytest's arguments.

    ValueError where there is no such section.
    """
    cut = words.index("--") if "--" in words else len(words)
    names, arguments = words[:cut] or list(SECTIONS), words[cut + 1 :]
    if unknown := set(names) - set(SECTIONS):
        raise ValueError(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    names += ["build"] if any(SECTIONS[name].image for name in names) else []
    return [name for name in SECTIONS if name in names], arguments


def main() -> int:
    """Run what the command line names, and print the table. Returns the exit code."""
    try:
        wanted, arguments = read_words(sys.argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if len(wanted) > 1:
        print("== what this machine has", *needs.table(), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run, interrupted = Run(wanted, arguments, Path(folder)), False
        begun = time.monotonic()
        try:
            run.run()
        except KeyboardInterrupt:
            interrupted = True
    results = {name: run.results[name] for name in wanted if name in run.results}
    part = "all tests" if FULL or arguments else "the core (all: FULL=1)"
    print(f"\n== {part}, {(time.monotonic() - begun) / 60:.1f} minutes", *summary(results), sep="\n", flush=True)
    if interrupted:
        return INTERRUPTED
    return int(any(result.word == FAILED for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
