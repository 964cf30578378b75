"""Slipway's own workloads stop on request: a snapshot, the right exit code, and a resume that goes on from it.

What the launcher makes of each signal is shown by workers without torch; one job is a real one.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Run = Callable[..., Launcher]
ENDLESS = ("gpt", "--preset", "tiny", "--steps", "100000", "--log-every", "1")


UNDER_WAY = Rule("hold")


def snapshots(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("runs/*/snapshots/step-*"))


def last_step(folder: Path) -> int:
    return int(snapshots(folder)[-1].removeprefix("step-"))


@pytest.mark.core
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 79)], ids=lambda value: str(value)
)
def test_a_stop_leaves_a_snapshot_and_says_what_it_was(
    start: Run, rules: Rules, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(UNDER_WAY))
    stop(job, rules, number)
    assert job.end() == code, job.text
    assert snapshots(tmp_path) == ["step-00000005"]
    assert any(number.name in line for line in job.closing), job.closing
    outcome = json.loads(next(tmp_path.glob("runs/*/outcome.json")).read_text())
    assert outcome["code"] == code


def stop(job: Launcher, rules: Rules, first: signal.Signals, *more: signal.Signals) -> None:
    """Send signals to a job whose rank 0 is held, and let that go once the launcher has taken note of the first."""
    rules.wait_for(UNDER_WAY, job)
    job.signal(first)
    job.wait_for(f"{first.name} received")
    for number in more:
        job.signal(number)
    rules.let_go(UNDER_WAY)


@pytest.mark.pull
def test_a_stop_that_reaches_every_process_saves_as_well(start: Run, rules: Rules, tmp_path: Path) -> None:
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(UNDER_WAY, torch=True))
    rules.wait_for(UNDER_WAY, job)
    for pid in _family(job.process.pid):
        os.kill(pid, signal.SIGTERM)
    job.wait_for("SIGTERM received")
    rules.let_go(UNDER_WAY)
    assert job.end() == 75, job.text
    assert len(snapshots(tmp_path)) == 1


@pytest.mark.pull
def test_two_stops_in_a_row_count_as_one(start: Run, rules: Rules, tmp_path: Path) -> None:
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(UNDER_WAY))
    stop(job, rules, signal.SIGTERM, signal.SIGUSR1)  # as Slurm does; the kernel would make one of two of a kind
    assert job.end() == 75, job.text
    assert len(snapshots(tmp_path)) == 1
    assert job.text.count(" received") == 1


@pytest.mark.pull
def test_workers_that_begin_after_a_stop_take_no_step(start: Run, rules: Rules, tmp_path: Path) -> None:
    begins = Rule("hold", step=0, phase="setup")
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(begins))
    rules.wait_for(begins, job)
    job.signal(signal.SIGTERM)
    job.wait_for("SIGTERM received")
    rules.let_go(begins)
    assert job.end() == 75, job.text
    assert "step 1/" not in job.text
    outcome = json.loads(next(tmp_path.glob("runs/*/outcome.json")).read_text())
    assert [tried["reached"] for tried in outcome["attempts"]] == [0]


@pytest.mark.core
def test_resume_auto_goes_on_from_the_snapshot_of_the_newest_run(
    start: Run, slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    job = start(*ENDLESS, NPROC_PER_NODE="2", **rules.variables(UNDER_WAY))
    stop(job, rules, signal.SIGTERM)
    assert job.end() == 75, job.text
    assert last_step(tmp_path) == 5
    words = ("gpt", "--preset", "tiny", "--steps", "10", "--log-every", "1", "--resume", "auto")
    again = slipway(*words, NPROC_PER_NODE="2", **rules.variables())
    assert again.end() == 0, again.text
    assert "step 6/10" in again.text
    assert "step 5/10" not in again.text
    assert last_step(tmp_path) == 10
    assert len(list(tmp_path.glob("runs/*"))) == 1


@pytest.mark.pull
def test_resume_auto_on_a_finished_run_says_so_and_is_content(slipway: Run, rules: Rules) -> None:
    words = ("linear", "--steps", "3", "--run-dir", "done")
    assert slipway(*words, **rules.variables()).end() == 0
    again = slipway(*words, "--resume", "auto")
    assert again.end() == 0, again.text
    assert "is finished" in again.text


@pytest.mark.pull
def test_a_run_directory_in_use_is_never_overwritten(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    words = ("linear", "--steps", "3", "--run-dir", "mine")
    assert slipway(*words, **rules.variables()).end() == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "mine").rglob("*"))
    again = slipway(*words)
    assert again.end() == 78, again.text
    assert "--resume auto" in again.text
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "mine").rglob("*")) == before


def _family(pid: int) -> list[int]:
    children = [
        int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _parent(folder) == pid
    ]
    return [pid, *(member for child in children for member in _family(child))]


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


# What `python` is started with in front of `-m slipway`: SIGTERM comes when the launcher shuts down.
LATE = """
import atexit, os, runpy, signal, sys, time
def tell_to_end():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
atexit.register(tell_to_end)
sys.argv[:4] = ["slipway"]
runpy.run_module("slipway", run_name="__main__", alter_sys=True)
"""


def test_a_stop_that_comes_when_all_is_over_leaves_the_exit_code_as_it_is(
    slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("import sys\nsys.exit(3)\n")
    job = slipway("run", "own.py", before=(sys.executable, "-c", LATE), NPROC_PER_NODE="1", **rules.variables())
    assert job.process.returncode == 1, job.text
