"""A copy in a store outlives the machines of a job: it resumes from there, and whoever was replaced leaves the copy alone."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kept import Kept
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import wait_until

from slipway.process.tree import trees

Run = Callable[..., Launcher]
JOB = (
    "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32", "--batch-size", "4", "--eval-samples", "16",
    "--sample-tokens", "0", "--precision", "fp32", "--log-every", "1", "--save-every", "10",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def steps_in(store: Path, run: str = "job") -> list[int]:
    """The steps whose manifests are in the store, by attempt and step."""
    return [int(path.parent.name[5:]) for path in sorted(store.glob(f"{run}/attempt-*/snapshots/step-*/manifest.json"))]


def kill(job: Launcher) -> None:
    """End a launcher and everything below it, as the end of its machine would."""
    for pid in [job.process.pid, *trees([job.process.pid])[job.process.pid]]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.end()


def weights(folder: Path, step: int) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / f"snapshots/step-{step:08d}").glob("*.safetensors")}


def test_a_stop_waits_until_its_snapshot_is_in_the_store(start: Run, rules: Rules, store: Path) -> None:
    held = Rule("hold")
    job = start("gpt", "--steps", "100", "--run-dir", "job", "--store", f"file://{store}", **rules.variables(held))
    rules.wait_for(held, job)
    job.signal(signal.SIGTERM)
    job.wait_for("SIGTERM received")
    rules.let_go(held)
    assert job.end() == 75, job.text
    assert steps_in(store) == [5]
    assert job.closing[-1] == f"file://{store}/job has step 5, the newest snapshot"
    assert any(
        "next: " in line and f"--resume auto --store file://{store}" in line for line in job.text.splitlines()
    ), job.text
    outcome = json.loads(next(store.glob("job/attempt-*/record/outcome.json")).read_text())
    assert outcome["code"] == 75


def test_a_store_that_goes_away_stops_nothing_and_is_reported(start: Run, rules: Rules, store: Path) -> None:
    held = Rule("hold")
    job = start(
        "gpt", "--steps", "20", "--run-dir", "job", "--store", f"file://{store}", "--grace-seconds", "5", **rules.variables(held)
    )  # fmt: skip
    rules.wait_for(held, job)
    wait_until(lambda: [*store.glob("job/claims/*")], lambda: f"a claim:\n{job.text}")
    store.rename(store.with_name("elsewhere"))
    rules.let_go(held)
    assert job.end() == 0, job.text
    assert "has no snapshot yet" in job.closing[-1], job.closing
    assert "there is no folder" in job.closing[-1]
    assert not store.exists()


def test_a_launcher_that_wakes_after_another_continued_its_run_ends_and_leaves_the_store_as_it_is(
    start: Run, rules: Rules, kept: Kept
) -> None:
    held = Rule("hold", step=15)
    words = ("gpt", "--steps", "20", "--save-every", "10", "--store", kept.address, "--run-dir")
    old = start(*words, "old/job", **kept.variables, **rules.variables(held))
    rules.wait_for(held, old)
    wait_until(lambda: 10 in kept.steps("job"), lambda: f"step 10 in the store:\n{old.text}")
    family = [old.process.pid, *trees([old.process.pid])[old.process.pid]]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    new = start(*words, "new/job", "--resume", "auto", **kept.variables, **rules.variables())
    assert new.end() == 0, new.text
    before = kept.contents()
    for pid in reversed(family):
        os.kill(pid, signal.SIGCONT)
    assert old.end() != 0, old.text
    assert "attempt 2 has continued job" in old.text
    assert kept.contents() == before
