"""What a real job's time went into: each second is booked once, over attempts, launchers and nodes."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launchers import Launcher
from test_attempts import SHORT, beat, outcome, write

Run = Callable[..., Launcher]
JOB = (*SHORT, "--eval-every", "8")


def check(ledger: dict[str, Any], wall: float) -> dict[str, float]:
    """The seconds of each kind, which are all that passed: to one percent, and a second for the launcher's own end."""
    seconds: dict[str, float] = ledger["seconds"]
    assert sum(seconds.values()) == pytest.approx(ledger["wall"], abs=0.2)
    assert ledger["wall"] == pytest.approx(wall, rel=0.01, abs=1.0)
    return seconds


@pytest.mark.core
def test_two_restarts_and_all_else_are_the_time_that_a_job_took(start: Run, slipway: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    job = start(*JOB, NPROC_PER_NODE="1")
    for attempt, step in enumerate((6, 12), 1):
        job.wait_for(f"step {step}/")
        os.kill(beat(tmp_path, 0, attempt)["pid"], signal.SIGKILL)
        job.wait_for(f": attempt {attempt + 1}")
    assert job.end() == 0, job.text
    told = outcome(tmp_path)
    seconds = check(told["ledger"], time.monotonic() - began)
    assert told["ledger"]["attempts"] == 3
    assert {"starting", "compiling", "training", "evaluating", "noticing", "restarting", "ending"} <= set(seconds)
    assert "queued" not in seconds
    [line] = [line for line in job.closing if re.search(r"^of .* % training, .*; 2 restarts cost [0-9.]+ %$", line)]
    shown = slipway("status")
    assert shown.end() == 0
    assert f"  time        {line}" in shown.text


def test_the_ledger_goes_on_where_a_launcher_was_killed(start: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    job = start("run", "--run-dir", "mine", *JOB, NPROC_PER_NODE="1")
    job.wait_for("step 6/")
    job.signal(signal.SIGKILL)
    job.process.wait()
    queue = time.monotonic()
    time.sleep(3)
    again = start("run", "--run-dir", "mine", "--resume", "auto", *JOB, NPROC_PER_NODE="1")
    queue = time.monotonic() - queue
    assert again.end() == 0, again.text
    told = json.loads((tmp_path / "mine/outcome.json").read_text())["ledger"]
    seconds = check(told, time.monotonic() - began)
    assert queue - 1 <= seconds["queued"] <= queue + 11, "what was written last is ten seconds old at most"
    assert told["attempts"] == 2
    assert "restarting" in seconds


def test_of_a_script_the_ledger_knows_what_the_launcher_saw(start: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    body = "time.sleep(3)\nsys.exit(3 if os.environ['SLIPWAY_ATTEMPT'] == '1' else 0)"
    job = start("run", "--max-restarts", "1", write(tmp_path, body), NPROC_PER_NODE="1")
    assert job.end() == 0, job.text
    seconds = check(outcome(tmp_path)["ledger"], time.monotonic() - began)
    assert {"starting", "running", "noticing", "pausing", "restarting"} <= set(seconds)
    assert seconds["running"] == pytest.approx(6.0, abs=3.0)
    assert "training" not in seconds
