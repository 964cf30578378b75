"""Stops at odd moments: to every process at once, before the first step, after the end. The others are rows of tests/faults/table.py."""

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
