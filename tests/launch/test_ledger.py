"""What a job's time went into: each second is booked once, over attempts and launchers.

Bounds come from the test's own clock, and hold on any machine: what a rank was held for has passed, and no more than the test took.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from test_attempts import SHORT, outcome, write
from waiting import wait_until

from slipway.protocol.files import read_json

Run = Callable[..., Launcher]
JOB = (*SHORT, "--eval-every", "8")
ROUNDED = 0.1  # s; more than the kernel's ticks and two digits behind the point take off a dozen kinds


def check(ledger: dict[str, Any], most: float) -> dict[str, float]:
    """The seconds of each kind, which are all that passed."""
    seconds: dict[str, float] = ledger["seconds"]
    assert sum(seconds.values()) == pytest.approx(ledger["wall"], abs=ROUNDED)
    assert ledger["wall"] <= most + ROUNDED
    return seconds


def hold(rules: Rules, rule: Rule, job: Launcher) -> float:
    """Hold a rank and let it go; for how many seconds it was held for certain."""
    rules.wait_for(rule, job)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 0.3, "the clock")
    held = time.monotonic() - began
    rules.let_go(rule)
    return held


@pytest.mark.core
def test_two_restarts_and_all_else_are_the_time_that_a_job_took(
    start: Run, slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    compiles = Rule("hold", step=0, phase="first-step")
    holds = {
        "training": Rule("hold", step=3),
        "evaluating": Rule("hold", step=8, phase="evaluate", attempt=2),
        "ending": Rule("hold", step=20, phase="finish", attempt=3),
    }
    kills = Rule("signal SIGKILL", step=6), Rule("signal SIGKILL", step=12, attempt=2)
    began = time.monotonic()
    job = start(*JOB, NPROC_PER_NODE="1", **rules.variables(compiles, *holds.values(), *kills))
    held = {"compiling": hold(rules, compiles, job)} | {kind: hold(rules, rule, job) for kind, rule in holds.items()}
    assert job.end() == 0, job.text
    told = outcome(tmp_path)
    seconds = check(told["ledger"], time.monotonic() - began)
    assert told["ledger"]["attempts"] == 3
    assert {"starting", "noticing", "restarting"} <= set(seconds)
    assert "queued" not in seconds
    assert not {
        kind: (seconds.get(kind), least) for kind, least in held.items() if seconds.get(kind, 0) < least - ROUNDED
    }
    [line] = [
        line for line in job.closing if re.search(r"^time: .* \(.* % training, .*; 2 restarts cost [0-9.]+ %\)$", line)
    ]
    shown = slipway("status")
    assert shown.end() == 0
    assert f"  time        {line.removeprefix('time: ')}" in shown.text


@pytest.mark.pull
def test_the_ledger_goes_on_where_a_launcher_was_killed(start: Run, rules: Rules, tmp_path: Path) -> None:
    held = Rule("hold", step=6)
    words = ("run", "--run-dir", "mine", *JOB)
    job = start(*words, NPROC_PER_NODE="1", **rules.variables(held))
    rules.wait_for(held, job)
    file = tmp_path / "mine/node-0/ledger.json"
    wait_until(file.exists, "the first ledger")
    job.signal(SIGKILL)
    job.process.wait()
    queue, written = 3600.0, read_json(file)
    file.write_text(json.dumps({**written, "until": written["until"] - queue}))  # as if it had been an hour ago
    least, began = time.time() - written["until"], time.monotonic()
    again = start(*words, "--resume", "auto", NPROC_PER_NODE="1", **rules.variables())
    begun = time.monotonic() - began
    assert again.end() == 0, again.text
    told = read_json(tmp_path / "mine/outcome.json")["ledger"]
    seconds = check(told, written["wall"] + queue + least + time.monotonic() - began)
    assert queue + least - ROUNDED <= seconds["queued"] <= queue + least + begun + ROUNDED
    assert told["attempts"] == 2
    assert "restarting" in seconds


@pytest.mark.pull
def test_of_a_script_the_ledger_knows_what_the_launcher_saw(start: Run, rules: Rules, tmp_path: Path) -> None:
    body = """
attempt = os.environ["SLIPWAY_ATTEMPT"]
print("runs, attempt", attempt, flush=True)
while not os.path.exists("go-" + attempt):
    time.sleep(0.01)
sys.exit(3 if attempt == "1" else 0)
"""
    began, ran = time.monotonic(), 0.0
    words = ("run", "--max-restarts", "1", write(tmp_path, body))
    job = start(*words, NPROC_PER_NODE="1", **rules.variables(pause=0.3))
    for attempt in (1, 2):
        job.wait_for(f"runs, attempt {attempt}")
        runs = time.monotonic()
        wait_until(lambda runs=runs: time.monotonic() - runs > 0.5, "the clock")
        ran += time.monotonic() - runs
        (tmp_path / f"go-{attempt}").touch()
    assert job.end() == 0, job.text
    seconds = check(outcome(tmp_path)["ledger"], time.monotonic() - began)
    # Of a script that is gone at the next look there is nothing to notice.
    assert {"starting", "running", "pausing", "restarting"} <= set(seconds)
    assert seconds["running"] >= ran - ROUNDED
    assert seconds["pausing"] >= 0.3 - ROUNDED
    assert "training" not in seconds
