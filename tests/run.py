"""`make test`: every section of the tests that this machine can run, and one table at the end.

    .venv/bin/python tests/run.py [SECTION …] [-- ARGUMENTS OF PYTEST]

Environment variables:
    TIER=core|pull|nightly   what of each section runs (tests/sections.py); arguments of pytest select among all tests
    PART=k/n                 only every n-th test file and make target, the k-th share of them
    BASE=REVISION            where only documentation changed since then, only the sections that read it run
    STRICT=1                 a section or test that is skipped fails if a Debian machine with root could run it

A section that fails does not hide the others. Nothing is tried twice. A test with the mark `quarantine(reason, until)` still
runs; the table shows it with its reason, and its failure does not count until that day. Ends with 0 where everything that ran
passed, else with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from threading import Lock

import needs
from sections import OF_DOCUMENTS, READERS, ROOT, SECTIONS, TIERS, TURNS, Section
from selection import QUARANTINED, Share, read_share

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
NOTHING_PICKED = 5  # pytest's exit code where its arguments left no test
INTERRUPTED = 130


@dataclass(frozen=True)
class Asked:
    """What the environment asks for."""

    tier: str = "core"
    strict: bool = False
    share: Share | None = None
    base: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Asked:
        """From TIER, STRICT, PART and BASE. ValueError where one of them cannot be."""
        tier = environ.get("TIER") or "core"
        if tier not in TIERS:
            raise ValueError(f"TIER={tier} is unknown. Allowed: {', '.join(TIERS)}")
        return cls(tier, bool(environ.get("STRICT")), read_share(environ), environ.get("BASE", ""))


@dataclass
class Result:
    """How a section ended, or why it was skipped: its tests counted by their ends, the failed ones by name, the reasons of those
    that were skipped, the quarantined ones, and its seconds."""

    word: str
    why: str = ""
    tests: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    quarantined: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Run:
    """One call of `make test`. `results` holds how each section ended, by its name."""

    def __init__(self, wanted: list[str], arguments: list[str], asked: Asked, folder: Path) -> None:
        self._wanted, self._arguments, self._asked, self._folder = wanted, arguments, asked, folder
        self._printing = Lock()
        self.results: dict[str, Result] = {}

    def run(self) -> None:
        """Run what is wanted, turn by turn."""
        for turn in TURNS:
            rows = [row for row in ([name for name in row if name in self._wanted] for row in turn) if row]
            beside = len(rows) > 1
            if beside:
                print(
                    f"== {'; beside that '.join(', '.join(row) for row in rows)}: each prints when it has ended",
                    flush=True,
                )
            with ThreadPoolExecutor(max(1, len(rows))) as pool:
                list(pool.map(lambda row, beside=beside: [self._end(SECTIONS[name], beside) for name in row], rows))

    def _end(self, section: Section, held: bool) -> None:
        """Run a section to its end; what it prints is `held` back until then where another runs meanwhile."""
        if result := obstacle(section, self._asked, bool(self._arguments)):
            self.results[section.name] = result
            return
        title = f"== {section.name}: {section.what}"
        print(f"-- {section.name} begins" if held else title, flush=True)
        begun, file = time.monotonic(), self._folder / f"{section.name}.xml"
        done = subprocess.run(
            section.command(sys.executable, self._arguments, self._asked.tier, self._folder), cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if held else None, stderr=subprocess.STDOUT if held else None, check=False,
        )  # fmt: skip
        self.results[section.name] = result = read_result(done.returncode, file)
        result.seconds = time.monotonic() - begun
        if section.name == "build" and result.word == FAILED:
            os.environ[needs.NO_IMAGE] = "1"
            needs.find_missing.cache_clear()
        with self._printing:
            if held:
                print(title, done.stdout.decode(errors="replace"), sep="\n", end="")
            print(f"== {section.name}: {result.word}, {result.seconds:.0f} s", flush=True)


def obstacle(section: Section, asked: Asked, picked: bool) -> Result | None:
    """Why a section does not run here or now, None where it does; `picked`: arguments of pytest select the tests."""
    if not section.belongs_to(asked.tier) and (section.goal or not picked):
        return Result(SKIPPED, f"belongs to a later tier: TIER={section.since} make test")
    if section.goal and asked.share and not asked.share.has(section.name):
        return Result(SKIPPED, f"belongs to another part than {asked.share}")
    for name in section.needs:
        if why := needs.reason(name):
            return Result(FAILED if asked.strict and needs.NEEDS[name].demanded else SKIPPED, why)
    return None


def read_result(code: int, file: Path) -> Result:
    """How a section ended, from its exit code and the XML that pytest wrote, if it did."""
    if code == NOTHING_PICKED:
        return Result(SKIPPED, "no test of it was selected")
    result = Result(FAILED if code else PASSED)
    for case in ET.parse(file).iter("testcase") if file.exists() else ():
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        ends = {child.tag: child for child in case}
        word = "failed" if ends.keys() & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"
        result.tests[word] += 1
        if word == "failed":
            result.failed.append(name)
        if word == "skipped":
            result.reasons[ends["skipped"].get("message", "")] += 1
        result.quarantined += [
            f"{name}: {row.get('value')}; it {word}" for row in case.iter("property") if row.get("name") == QUARANTINED
        ]
    if code and result.tests and not result.failed:
        result.why = f"every test passed, and then pytest ended with {code}: its last lines above tell why"
    return result


def summary(results: dict[str, Result]) -> list[str]:
    """The table: sections, then the quarantined tests, what was skipped, what failed, and the sum of all."""
    lines = [f"{'section':<13}{'result':<9}{'tests':>6}{'seconds':>9}"]
    for name, result in results.items():
        ran = result.tests["passed"] + result.tests["failed"]
        seconds = f"{result.seconds:.0f}" if result.seconds else "–"
        lines.append(f"{name:<13}{result.word:<9}{ran or '–':>6}{seconds:>9}  {result.why}".rstrip())
    for title, rows in (
        ("in quarantine", [(name, row, 1) for name, result in results.items() for row in result.quarantined]),
        ("skipped within the sections", [(name, *row) for name, result in results.items() for row in result.reasons.items()]),
        ("failed within the sections", [(name, row, 1) for name, result in results.items() for row in result.failed]),
    ):  # fmt: skip
        if rows:
            lines += ["", title]
            lines += [f"{name:<13}{text}{f'  ({count} tests)' if count > 1 else ''}" for name, text, count in rows]
    sums = sum((result.tests for result in results.values()), Counter[str]())
    # A section without tests of its own (lint) counts as one.
    for result in results.values():
        sums[result.word.lower()] += not result.tests and result.word != SKIPPED
    return [*lines, "", f"{sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped"]


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


def readers(changed: Iterable[str]) -> list[str]:
    """The sections that read these paths where all of them are documentation (pages and pictures, no code); otherwise none."""
    paths = [PurePath(name) for name in changed]
    if not paths or any(path.suffix not in (".md", ".svg", ".png") for path in paths):
        return []
    wanted = {*OF_DOCUMENTS, *(name for path in paths for name in READERS.get(path.parts[0], ()))}
    return [name for name in SECTIONS if name in wanted]


def changed_since(base: str) -> list[str]:
    """The paths that differ between a revision and the working tree, none where git does not know the revision."""
    done = subprocess.run(
        ["git", "diff", "--name-only", base, "--"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"BASE={base} is no revision that git knows here; all sections run", file=sys.stderr)
    return done.stdout.split("\n")[:-1]


def main() -> int:
    """Run what the command line names, and print the table. Returns the exit code."""
    try:
        asked = Asked.read(os.environ)
        wanted, arguments = read_words(sys.argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.base and (reading := readers(changed_since(asked.base))):
        print(f"== only documentation changed since {asked.base}: {', '.join(reading)} run", flush=True)
        wanted = [name for name in wanted if name in reading]
    if len(wanted) > 1:
        print("== what this machine has", *needs.table(), sep="\n", flush=True)
    folder = tempfile.mkdtemp(prefix="tests-")
    run, interrupted = Run(wanted, arguments, asked, Path(folder)), False
    begun = time.monotonic()
    try:
        run.run()
    except KeyboardInterrupt:
        interrupted = True
    finally:  # not with shutil, whose recursion ends before some tests' trees do
        subprocess.run(["rm", "--recursive", "--force", "--one-file-system", folder], check=False)
    results = {name: run.results[name] for name in wanted if name in run.results}
    part = "selected tests" if arguments else f"tier {asked.tier}{f', part {asked.share}' if asked.share else ''}"
    print(f"\n== {part}, {(time.monotonic() - begun) / 60:.1f} minutes", *summary(results), sep="\n", flush=True)
    if interrupted:
        return INTERRUPTED
    return int(any(result.word == FAILED for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
