"""Copies of the checkout in which changes are tried, and which tests should notice a change of which file."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from attrs import evolve
from changes import Change
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import WorkerOutcome

ROOT = Path(__file__).resolve().parents[2]
# Each file with the tests that should notice, in the order in which they run. The first that fails ends the run.
TESTS = {
    "settings": ("settings",),
    "sources": ("settings", "env_file", "misspelt"),
    "schedulers": ("schedulers", "contradictions", "topology", "nodelist"),
    "topology": ("contradictions", "topology", "placement"),
    "plan": ("plan", "spawned_plan", "plan_command"),
    "restarts": ("attempts",),
    "ledger": ("ledger",),
    "verdict": ("verdict",),
    "ending": ("ending",),
    "membership": ("membership", "compare"),
    "rules": ("rules", "hang_report"),
    "leadership": ("successors", "rules"),
    "printable": ("printable",),
    "tracebacks": ("tracebacks",),
}
# Of pytest's plugins only the one that pyproject.toml has a setting for: a quarter of such a short run goes into the others.
BARE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
SPARE = 10.0  # s beyond three times what the tests take unchanged: a change that takes longer never ends


@dataclass(frozen=True)
class Trial:
    """What became of a change of a file."""

    name: str
    line: int
    survived: bool
    diff: str  # its lines only


def file_of(name: str) -> Path:
    """Where a file of the table lies, from the root."""
    packages = (ROOT / "entrypoint/slipway" / package for package in ("launch", "protocol"))
    [file] = (file for package in packages for file in package.rglob(f"{name}.py"))
    return file.relative_to(ROOT)


def file_of_tests(name: str) -> Path:
    """The file of tests/unit that is called so."""
    [file] = (ROOT / "tests/unit").rglob(f"test_{name}.py")
    return file


class Bench:
    """Copies of the checkout, of which each trial has one to itself."""

    def __init__(self, folder: Path, names: Iterable[str], many: int) -> None:
        """Make so many copies below a folder. The tests of `names` must pass there as long as nothing is changed."""
        self._first = folder / "0"
        copy_checkout(self._first)
        self._limits = {name: 3 * self._time(name) + SPARE for name in names}
        for file in {self._first / file_of(name) for name in TESTS}:
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
                compiled.unlink()  # Python would not see a change of the same length within the same second
        self._free: Queue[Path] = Queue()
        for number in range(1, many + 1):
            self._free.put(shutil.copytree(self._first, folder / str(number), symlinks=True))

    def read(self, name: str) -> str:
        """A file's text without any change."""
        return (self._first / file_of(name)).read_text(encoding="utf-8")

    def attempt(self, change: Change) -> Trial:
        """Make a change and run the file's tests."""
        copy = self._free.get()
        try:
            mutation = evolve(change.mutation, module_path=copy / file_of(change.name))
            result = mutate_and_test([mutation], _command(change.name, copy), self._limits[change.name])
        finally:
            self._free.put(copy)
        if result.worker_outcome != WorkerOutcome.NORMAL:  # it would count as killed
            raise RuntimeError(f"{change} could not be tried: {result.output}")
        lines = [line for line in str(result.diff).splitlines() if line[:1] in ("+", "-")]
        told = [line for line in lines if not line.startswith(("+++", "---"))]
        return Trial(change.name, change.line, not result.is_killed, "\n".join(told))

    def _time(self, name: str) -> float:
        # What Python compiles on the way is kept for the trials: they run with PYTHONDONTWRITEBYTECODE.
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        began = time.monotonic()
        words = shlex.split(_command(name, self._first))
        done = subprocess.run(words, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nThe tests of {name} must pass before anything is changed.")
        return time.monotonic() - began


def copy_checkout(folder: Path) -> None:
    """Copy what git tracks, and what it would, as it lies here."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def _command(name: str, copy: Path) -> str:
    """What runs a file's tests in a copy, whose package goes before the one that .venv knows."""
    tests = [str(file_of_tests(test).relative_to(ROOT)) for test in TESTS[name]]
    where = (f"--chdir={copy}", f"PYTHONPATH={copy / 'entrypoint'}", BARE)
    return shlex.join(["env", *where, sys.executable, *PYTEST, *tests])
