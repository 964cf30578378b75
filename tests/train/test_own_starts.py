"""A second start of a run: with other arguments, other numbers in the script, or on some ranks alone."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR
from torch.utils.data import DataLoader, TensorDataset
from waiting import PATIENCE, wait_until

import slipway
from slipway.process.folder_lock import read_holder, this_process
from slipway.process.tree import start_ticks
from slipway.protocol.files import write_json
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.redact import redact_words
from slipway.train.user.declared import require_same_arguments
from slipway.train.user.joining import lock_folder, told_if_late

pytestmark = [pytest.mark.pull, pytest.mark.usefixtures("own_run")]
Schedule = Callable[[torch.optim.Optimizer], Any]


def train(epochs: int, schedule: Schedule, size: int = 2, **more: float) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), **more)
    scheduler = schedule(optimizer)
    run = slipway.resume(model=model, optimizer=optimizer, schedule=scheduler)
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), size)
    for _ in run.epochs(epochs):
        for (batch,) in run.batches(loader):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            scheduler.step(*[1.0] * isinstance(scheduler, ReduceLROnPlateau))


def cosine(steps: int) -> Schedule:
    return lambda optimizer: CosineAnnealingLR(optimizer, steps)


def warmed(first: int, steps: int) -> Schedule:
    return lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=first), CosineAnnealingLR(optimizer, steps)], [first]
    )


STARTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "alike": ({"schedule": cosine(9)}, {"schedule": cosine(9)}, []),
    "rate": ({"schedule": cosine(9)}, {"schedule": cosine(9), "lr": 0.01}, ["lr of optimizer is 0.01 in the script, and was 0.1"]),
    "decay": (
        {"schedule": cosine(9)}, {"schedule": cosine(9), "weight_decay": 0.5},
        ["weight_decay of optimizer is 0.5 in the script, and was 0"],
    ),
    "length": ({"schedule": cosine(9)}, {"schedule": cosine(12)}, ["T_max of schedule is 12 in the script, and was 9"]),
    "alike_warmed": ({"schedule": warmed(2, 9)}, {"schedule": warmed(2, 9)}, []),
    "warmed": (
        {"schedule": warmed(2, 9)}, {"schedule": warmed(3, 9), "lr": 0.2},
        [
            "_milestones[0] of schedule is 3 in the script, and was 2",
            "_schedulers[0].total_iters of schedule is 3 in the script, and was 2",
            "lr of optimizer is 0.2 in the script, and was 0.1",
        ],
    ),
    "plateau": (
        {"schedule": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0)},
        {"schedule": lambda optimizer: ReduceLROnPlateau(optimizer, patience=3)},
        ["patience of schedule is 3 in the script, and was 0"],
    ),
    "cycle": (
        {"schedule": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9)},
        {"schedule": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9)}, [],
    ),
    "batches": (
        {"schedule": cosine(9)}, {"schedule": cosine(9), "size": 4},
        ["the batch size of run.batches is 4 in the script, and was 2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "expected"), STARTS.values(), ids=STARTS)
def test_what_differs_from_the_run_is_named(
    first: dict[str, Any], second: dict[str, Any], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    train(1, **{"lr": 0.1, **first})
    assert "warning" not in capsys.readouterr().err
    train(2, **{"lr": 0.1, **second})
    said = [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines() if "applies" in line]
    named = [re.sub(r"( and was [\d.e-]+).*", r"\1", line) for line in said]
    assert [line for line in sorted(named) if not line.startswith(("eta_", "max_"))] == sorted(expected)


@pytest.mark.parametrize(
    ("asked", "code"), [({}, 78), ({"SLIPWAY_RESUME": "auto"}, 0), ({"SLIPWAY_RUN_DIR": "other"}, 0)]
)
def test_a_second_start_with_other_arguments_asks_what_is_meant(
    asked: dict[str, str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1", "--token=abcdefgh", "--fast"])
    train(1, cosine(9), lr=0.1)
    train(1, cosine(9), lr=0.1)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.01", "--token=abcdefgh", "--fast"])
    monkeypatch.chdir(tmp_path)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) if code else nullcontext() as end:
        train(2, cosine(9), lr=0.01)
    assert not code or (end is not None and end.value.code == code)
    said = "it had --lr 0.1, and this start has --lr 0.01. Start a new run in another folder: SLIPWAY_RUN_DIR=PATH"
    assert (said in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(
    ("own", "stored", "said"),
    [
        (["a.yaml"], ["b.yaml"], "it had b.yaml, and this start has a.yaml"),
        ([], ["--fast"], "it had --fast, and this start has no others"),
        (["--lr", "1", "--fast"], ["--fast", "--lr", "1"], ""),
        (["--lr", "1", "--lr", "2"], ["--lr", "1"], "it had no others, and this start has --lr 2"),
    ],
)
def test_arguments_are_compared_as_options(own: list[str], stored: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        require_same_arguments(own, stored, "run")


HOLDS = ("train.py", "--lr", "0.1")


def hold(node: Path, **change: Any) -> Path:
    """A lock file of another process that lives, the parent of this one."""
    node.mkdir(parents=True)
    other = {"pid": os.getppid(), "started": start_ticks(os.getppid()), **change}
    write_json(file := node / "launcher.json", this_process(1.0, script=HOLDS)._replace(**other)._asdict())
    return file


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (["train.py", "--lr", "0.01"], " (it has --lr 0.1, and this start has --lr 0.01). Two trainings"),
        (
            HOLDS,
            " UTC. Two trainings in one folder would mix their snapshots. Give this one a folder of its own: SLIPWAY_RUN_DIR=PATH",
        ),
    ],
)
def test_a_folder_in_which_another_process_trains_is_refused(
    own: Sequence[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", list(own))
    file = hold(node := tmp_path / "run" / "node-0")
    (node / "stop").touch()
    before = file.read_bytes()
    with pytest.raises(SystemExit) as end:
        train(1, cosine(9), lr=0.1)
    assert end.value.code == 78
    text = capsys.readouterr().err
    assert f"is in use by `train.py --lr 0.1` with process id {os.getppid()}" in text
    assert said in text
    assert f"`slipway stop {tmp_path / 'run'}`" in text
    assert (file.read_bytes(), (node / "stop").exists()) == (before, True), "what is the other's stays"


def test_the_place_of_a_script_that_was_killed_is_taken_and_left_at_the_end(tmp_path: Path) -> None:
    file, seen = hold(tmp_path / "run" / "node-0", started=1), list[Any]()
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model, optimizer=torch.optim.SGD(model.parameters()))
    for _ in run.steps(1):
        seen.append(read_holder(file))
    assert (seen[0].pid, seen[0].script) == (os.getpid(), tuple(redact_words(sys.argv)))
    assert not file.exists()


def test_a_script_whose_folder_was_taken_over_while_it_was_frozen_writes_no_more(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    run = slipway.resume(model=model, optimizer=torch.optim.SGD(model.parameters()))
    lock, writer = run._context.place.lock, run._snapshots.writer
    assert lock is not None
    assert not writer._superseded()
    (tmp_path / "run" / "node-0").rename(tmp_path / "before")
    file = hold(tmp_path / "run" / "node-0")
    wait_until(writer._superseded, "its next look")
    lock.release()
    assert file.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_end_if_one_of_them_is_refused(rank: int, tmp_path: Path) -> None:
    class Ranks:
        place = SimpleNamespace(is_writer=rank == 0, node_dir=tmp_path / "run" / "node-0")

        def gather_number(self, refused: bool) -> list[bool]:
            assert refused is (rank == 0)
            return [True, False]

        def share_text(self, text: str, source: int) -> str:
            return "rank 0's"

    hold(tmp_path / "run" / "node-0")
    with pytest.raises(ConfigurationError, match="rank 0's"):
        lock_folder(Ranks())  # type: ignore[arg-type]


def test_a_rank_that_waits_for_others_in_resume_says_so() -> None:
    said, heard = [], threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    with told_if_late(3, 0, say):
        assert heard.wait(PATIENCE)
    assert said[0].startswith("slipway: rank 3 has called slipway.resume and waits for ranks that have not.")
    with told_if_late(3, PATIENCE, said.append):
        pass
    assert len(said) == 1
