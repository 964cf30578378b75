"""Would the tests notice? Changes the launcher's pure files on purpose, one place at a time, and runs their tests.

    make mutants                      a sample, the same each time
    make mutants ARGS=--all           every change
    make mutants ARGS="plan ending"   these files only

A change that a test notices is killed; one that no test notices survived, and is printed. It works in copies of the
checkout and needs no torch. Exits 1 where fewer than 85 % of a file's changes are killed.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from changes import Change, find_changes
from trial import TESTS, Bench, Trial, file_of

SAMPLE = 130  # changes of each file
LEAST = 85  # percent
AT_ONCE = 2
TOLD = 50  # changes between two lines of progress


def main(words: Sequence[str]) -> int:
    """The exit code: 1 where a file's tests let too much pass."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Would the tests notice?")
    parser.add_argument("--all", action="store_true", help=f"every change, not {SAMPLE} of each file")
    parser.add_argument("names", nargs="*", metavar="FILE", help=f"some of {', '.join(TESTS)}; without any all")
    options = parser.parse_args(words)
    if unknown := set(options.names) - set(TESTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    names = options.names or list(TESTS)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(Path(folder), names, AT_ONCE)
        changes = [
            change for name in names for change in find_changes(name, bench.read(name), None if options.all else SAMPLE)
        ]
        random.Random(0).shuffle(changes)  # so that Ctrl-C leaves something to say of each file
        trials: list[Trial] = []
        with suppress(KeyboardInterrupt):  # what has been tried by then is told
            for trial in told(try_all(bench, changes), len(changes)):
                trials.append(trial)
    for trial in sorted(trials, key=lambda trial: (trial.name, trial.line)):
        if trial.survived:
            print(f"\n{file_of(trial.name)}:{trial.line} survived\n{trial.diff}")
    return 0 if print_table(names, trials) and len(trials) == len(changes) else 1


def try_all(bench: Bench, changes: Sequence[Change]) -> Iterator[Trial]:
    """Try the changes, some at once; Ctrl-C waits only for those that are under way."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for done in as_completed([pool.submit(bench.attempt, change) for change in changes]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def told(trials: Iterator[Trial], many: int) -> Iterator[Trial]:
    """The same trials, with a line now and then that says how far they are."""
    began, survived = time.monotonic(), 0
    for number, trial in enumerate(trials, start=1):
        survived += trial.survived
        if number % TOLD == 0 or number == many:
            minutes = (time.monotonic() - began) / 60
            print(f"{number} of {many} changes tried in {minutes:.0f} min, {survived} survived", flush=True)
        yield trial


def print_table(names: Sequence[str], trials: Sequence[Trial]) -> bool:
    """A line per file; returns whether enough was killed in each."""
    print(f"\n{'file':<16}{'mutants':>9}{'killed':>9}{'survived':>10}{'percent':>9}")
    good = True
    for name in [*names, "all"]:
        mine = [trial for trial in trials if name in (trial.name, "all")]
        survived = sum(trial.survived for trial in mine)
        percent = 100 * (len(mine) - survived) / max(1, len(mine))
        enough = percent >= LEAST or name == "all"
        good = good and enough
        short = "" if enough else f"  fewer than {LEAST} %"
        print(f"{name:<16}{len(mine):>9}{len(mine) - survived:>9}{survived:>10}{percent:>8.0f}%{short}")
    return good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
