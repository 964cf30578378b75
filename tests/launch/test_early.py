"""Workers of our own workloads begin while torchrun is still importing torch; those of a user's program do not."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher

# Python runs it first of all in every process: each notes what it is, and which rank it was told to be.
SITE = """
import json, os
words = open("/proc/self/cmdline").read().split("\\0")
if os.environ.get("LOCAL_RANK"):
    with open(f"{os.environ['SEEN']}/{os.getpid()}", "w") as file:
        json.dump([os.environ["RANK"], os.environ["WORLD_SIZE"], "slipway.process.warm" in words], file)
"""
Run = Callable[..., Launcher]


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Where processes with a local rank note themselves, when started with PYTHONPATH set to it."""
    folder = tmp_path / "seen"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    return folder


def read(folder: Path) -> list[list[object]]:
    """Rank, world size, and whether it began early, of each process that was a worker."""
    return sorted(json.loads(file.read_text()) for file in folder.iterdir() if file.name.isdecimal())


def test_our_workloads_begin_early_and_once(slipway: Run, seen: Path) -> None:
    job = slipway("linear", "--steps=1", "--nproc-per-node=2", PYTHONPATH=str(seen), SEEN=str(seen))
    assert job.process.returncode == 0, job.text
    assert read(seen) == [["0", "2", True], ["1", "2", True]]


def test_a_users_program_begins_when_torchrun_starts_it(slipway: Run, seen: Path, script: Path) -> None:
    job = slipway("run", "--nproc-per-node=2", str(script), PYTHONPATH=str(seen), SEEN=str(seen))
    assert job.process.returncode == 0, job.text
    assert read(seen) == [["0", "2", False], ["1", "2", False]]


def test_a_worker_that_is_told_nothing_ends_without_a_word() -> None:
    words = [sys.executable, "-m", "slipway.process.warm", "slipway.train.workloads.linear"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
