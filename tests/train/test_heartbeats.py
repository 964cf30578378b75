"""What a worker tells the launcher about where it stands."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from training_jobs import Job, Run, raise_stop_flag
from waiting import PATIENCE, wait_until

from slipway.train.loop import fit as loop
from slipway.train.loop.loader import Loader
from slipway.train.loop.training import Training
from slipway.train.snapshots import snapshot
from slipway.train.worker import launcher
from slipway.train.worker.launcher import Heartbeat

pytestmark = pytest.mark.core


def test_a_heartbeat_is_written_at_a_change_of_phase_and_otherwise_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now)
    path = tmp_path / "heartbeat" / "rank-3.json"
    beats, seen = Heartbeat(path), []
    for seconds, phase in [(0, "setup"), (0.1, "train"), (0.1, "train"), (0.3, "train"), (0.2, "train"), (0, "save")]:
        now += seconds
        beats.beat(phase, len(seen), 20)
        seen.append((record := json.loads(path.read_text()))["step"])
    assert seen == [0, 1, 1, 1, 4, 5]
    spent = record.pop("spent")
    place = {"phase": "save", "step": 5, "steps": 20, "beats": 6, "first": 1}
    assert record == {**place, "monotonic": now, "pid": os.getpid(), "again": 0.0}
    assert spent == {"setup": pytest.approx(0.1), "train": pytest.approx(0.6)}
    assert path.read_text().count("\n") == 1


def test_steps_that_are_made_again_after_going_back_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now)
    beats = Heartbeat(tmp_path / "rank-0.json")
    # What goes back tells its old step until the next one is done.
    for phase, step in (
        ("train", 8),
        ("train", 9),
        ("load", 9),
        ("train", 9),
        ("train", 7),
        ("train", 8),
        ("save", 8),
        ("train", 10),
    ):
        beats.beat(phase, step, 20)
        now += 1.0
    assert json.loads((tmp_path / "rank-0.json").read_text())["again"] == 3.0, "to step 7, to 8, and until the save"
    beats.facts = {"own": 0.25}
    beats.beat("save", 10, 20)
    record = json.loads((tmp_path / "rank-0.json").read_text())
    assert (record["again"], record["own"]) == (3.0, 0.25)


class Later:
    """Stands for threading.Timer: what it is to call is called by the test, however long that takes."""

    made: list[Later]

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call, self.started = seconds, call, False
        self.made.append(self)

    def start(self) -> None:
        self.started = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Later]:
    """The timers that heartbeats have made, while the clock shows 100.0."""
    monkeypatch.setattr(Later, "made", [], raising=False)
    monkeypatch.setattr(launcher, "Timer", Later)
    monkeypatch.setattr(launcher.time, "monotonic", lambda: 100.0)
    return Later.made


def test_the_last_beat_is_written_though_no_other_follows(tmp_path: Path, timers: list[Later]) -> None:
    path = tmp_path / "rank-0.json"
    beats = Heartbeat(path)
    for step in range(100):
        beats.beat("train", step, 100)
    assert json.loads(path.read_text())["step"] == 0
    [timer] = timers
    assert (timer.started, timer.seconds) == (True, launcher.INTERVAL)
    timer.call()
    assert json.loads(path.read_text())["beats"] == 100


def test_a_worker_that_makes_no_steps_writes_no_heartbeats(tmp_path: Path, timers: list[Later]) -> None:
    path = tmp_path / "rank-0.json"
    beats = Heartbeat(path)
    for step in range(3):
        beats.beat("train", step, 100)
    for timer in [*timers]:
        timer.call()
    told = json.loads(path.read_text())
    assert (told["step"], told["monotonic"]) == (2, 100.0), "the time of the step, not of the writing"
    assert len(timers) == 1, "no other is started until the next beat"
    beats.beat("train", 3, 100)
    assert len(timers) == 2


def test_a_beat_that_is_being_written_when_the_worker_ends_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, waited_for, path = threading.Event(), threading.Event(), tmp_path / "rank-0.json"

    def dumps_when_waited_for(value: object) -> str:
        writing.set()
        waited_for.wait(PATIENCE)
        return dumps(value)

    class Timer(threading.Timer):
        def join(self, timeout: float | None = None) -> None:
            waited_for.set()
            super().join(timeout)

    beats, dumps = Heartbeat(path), json.dumps
    beats.beat("train", 1, 9)
    monkeypatch.setattr(launcher, "Timer", Timer)
    monkeypatch.setattr(launcher.json, "dumps", dumps_when_waited_for)
    beats.beat("train", 2, 9)
    assert writing.wait(PATIENCE)
    beats.close()
    waited_for.set()
    assert [file.name for file in tmp_path.iterdir()] == ["rank-0.json"]
    assert json.loads(path.read_text())["step"] == 2
    beats.beat("train", 3, 9)
    beats.beat("train", 4, 9)
    beats.close()
    assert json.loads(path.read_text())["step"] == 4, "and does not wait for its moment"


def test_waiting_for_data_does_not_count_as_getting_further(tmp_path: Path) -> None:
    beats = Heartbeat(tmp_path / "rank-0.json")
    for phase in ("train", "data", "data", "train"):
        beats.beat(phase, 1, 2)
    assert json.loads((tmp_path / "rank-0.json").read_text())["beats"] == 2


def test_a_heartbeat_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").write_text("a file where the folder should be")
    Heartbeat(tmp_path / "heartbeat" / "rank-0.json").beat("setup", 0, None)


def test_workers_report_their_steps_and_print_their_stacks_when_asked(start: Callable[..., Job]) -> None:
    job = start("linear", "--dataset-size", 512, "--steps", 100_000, hold=["part", 21, 1])
    # Rank 1 is held within its 21st step, and rank 0 waits for it there: both report that 20 are done, and stay so.
    wait_until(
        lambda: [job.heartbeat(rank).get("step") for rank in (0, 1)] == [20, 20], lambda: f"20 steps:\n{job.output}"
    )
    beats = [job.heartbeat(rank) for rank in (0, 1)]
    assert [beat["pid"] for beat in beats] == [worker.pid for worker in job.workers]
    assert {(beat["phase"], beat["steps"], beat["beats"]) for beat in beats} == {("train", 100_000, beats[0]["beats"])}
    os.kill(beats[1]["pid"], signal.SIGUSR2)
    wait_until(lambda: "in train_through" in job.output, lambda: f"the stack:\n{job.output}")  # it comes line by line
    assert "(most recent call first)" in job.output
    raise_stop_flag(job.folders[0])
    run = job.end()[0]
    assert [outcome["outcome"] for outcome in run.outcomes] == ["stopped", "stopped"]
    assert job.heartbeat()["phase"] == "finish"


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The phases of a worker in this process, in order, while it trains."""
    told: list[str] = []
    beat = Heartbeat.beat

    def listen(self: Heartbeat, phase: str, step: int, steps: int | None) -> None:
        told.extend([phase] if told[-1:] != [phase] else [])
        beat(self, phase, step, steps)

    monkeypatch.setattr(Heartbeat, "beat", listen)
    return told


def test_who_waits_for_data_after_an_evaluation_says_so(
    train: Callable[..., Run], phases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, waited = Loader.ready, list[Loader]()

    def become_ready_at_the_second_wait(loader: Loader, within: float = 0.0) -> bool:
        if not within:
            waited.clear()
            return False
        waited.append(loader)
        return len(waited) > 1 and ready(loader, PATIENCE)

    monkeypatch.setattr(Loader, "ready", become_ready_at_the_second_wait)
    train("linear", "--steps", 3, "--eval-every", 1, "--save-every", 0, "--workers", 1)
    others = [phase for phase in phases if phase != "train"]
    assert [after for phase, after in pairwise(others) if phase == "evaluate"] == ["data", "data", "save"]


def test_a_failed_worker_that_still_writes_a_snapshot_says_so(
    train: Callable[..., Run], phases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take, write = loop.take_step, snapshot.write_file

    def fail(training: Training, phase: str) -> float:
        if training.step == 3:
            raise ValueError("a reason of its own")
        return take(training, phase)

    def write_once_it_said_so(*args: Any) -> Any:
        wait_until(lambda: phases[-2:] == ["train", "save"] and phases.count("save") == 2, lambda: f"a word: {phases}")
        return write(*args)

    monkeypatch.setattr(loop, "take_step", fail)
    monkeypatch.setattr(snapshot, "write_file", write_once_it_said_so)
    assert train("linear", "--steps", 9, "--save-every", 2).exit_code == 1
    assert phases[-2:] == ["train", "save"]
