"""What a worker tells the launcher about where it stands."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from training_jobs import Job, Run, raise_stop_flag

from slipway.train.loop import fit as loop
from slipway.train.loop.loader import Loader
from slipway.train.loop.training import Training
from slipway.train.snapshots import snapshot
from slipway.train.worker import heartbeat
from slipway.train.worker.heartbeat import Heartbeat

pytestmark = pytest.mark.core


def test_a_heartbeat_is_written_at_a_change_of_phase_and_otherwise_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
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
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
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


def test_the_last_beat_is_written_though_no_other_follows(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    beats = Heartbeat(path)
    for step in range(100):
        beats.beat("train", step, 100)
    deadline = time.monotonic() + 10
    while json.loads(path.read_text())["step"] != 99 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads(path.read_text())["beats"] == 100


def test_a_beat_that_is_being_written_when_the_worker_ends_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, path = threading.Event(), tmp_path / "rank-0.json"

    def dumps_slowly(value: object) -> str:
        writing.set()
        time.sleep(0.3)
        return dumps(value)

    beats, dumps = Heartbeat(path), json.dumps
    beats.beat("train", 1, 9)
    monkeypatch.setattr(heartbeat.json, "dumps", dumps_slowly)
    beats.beat("train", 2, 9)
    assert writing.wait(10)
    beats.close()
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


def test_workers_tell_their_steps_and_print_their_stacks_when_asked(start: Callable[..., Job]) -> None:
    job = start("linear", "--dataset-size", 512, "--steps", 100_000)
    job.wait_for("train", 5)
    first = [job.heartbeat(rank) for rank in (0, 1)]
    assert [beat["pid"] for beat in first] == [worker.pid for worker in job.workers]
    assert {beat["steps"] for beat in first} == {100_000}
    time.sleep(1.5)
    for rank, before in enumerate(first):
        after = job.heartbeat(rank)
        assert (after["step"] > before["step"], after["monotonic"] > before["monotonic"]) == (True, True)
    os.kill(first[1]["pid"], signal.SIGUSR2)
    deadline = time.monotonic() + 10
    while "in train_through" not in job.output and time.monotonic() < deadline:  # the stacks come line by line
        time.sleep(0.05)
    assert "(most recent call first)" in job.output
    assert "in train_through" in job.output
    raise_stop_flag(job.folders[0])
    run = job.end()[0]
    assert [outcome["outcome"] for outcome in run.outcomes] == ["stopped", "stopped"]
    assert job.heartbeat()["phase"] == "finish"


def test_a_worker_that_stands_still_says_so_no_more(start: Callable[..., Job]) -> None:
    job = start("linear", "--dataset-size", 512, "--steps", 100_000)
    job.wait_for("train", 5)
    os.kill(job.workers[1].pid or 0, signal.SIGSTOP)
    time.sleep(1)
    before = [job.heartbeat(rank)["monotonic"] for rank in (0, 1)]
    time.sleep(1.5)
    assert [job.heartbeat(rank)["monotonic"] for rank in (0, 1)] == before


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
    make = Loader._make_part
    monkeypatch.setattr(Loader, "_make_part", lambda *args: (time.sleep(1.5), make(*args))[1])
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

    monkeypatch.setattr(loop, "take_step", fail)
    monkeypatch.setattr(snapshot, "write_file", lambda *args: (time.sleep(0.5), write(*args))[1])
    assert train("linear", "--steps", 9, "--save-every", 2).exit_code == 1
    assert phases[-2:] == ["train", "save"]
