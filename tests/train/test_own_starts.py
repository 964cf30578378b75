"""A second start of a run: with other arguments, other numbers in the script, or on some ranks alone."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR
from torch.utils.data import DataLoader, TensorDataset
from waiting import PATIENCE

import slipway
from slipway.protocol.mistake import ConfigurationError
from slipway.train.own.declared import require_same_arguments
from slipway.train.own.joining import told_if_late

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
