"""What a script keeps beside states: attributes of models, optimizers and data. It comes back, or a line names it."""

from __future__ import annotations

import copy
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from own_runs import assert_equal
from test_own_rhythm import BrokenOffError, break_off
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import slipway

pytestmark = pytest.mark.pull
LONG = 20_000  # values of a tensor that is too large to be saved as an attribute


class Net(nn.Module):
    """A model that keeps all kinds of values beside its parameters."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.settings = settings or SimpleNamespace(temperature=2.0)
        self.register_buffer("memory", torch.zeros(4), persistent=False)
        self.average, self.past = torch.zeros(4), deque[float](maxlen=3)
        self.array, self.counts, self.gates = np.zeros(2), {"seen": 0}, [1.0, 1.0]
        self.last: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(inputs)  # a result, which no restart needs
        return self.last * (1 + self.extra())

    def extra(self) -> float:
        """Whatever the attributes make of it."""
        kept = [*self.past, *self.gates, float(self.array.sum()), float(self.counts["seen"])]
        return float(sum(kept)) / 100 + float(self.memory.sum() + self.average.sum()) / 100  # type: ignore[operator]


def rebound_buffer(net: Net) -> None:
    net.memory = 0.9 * net.memory + 1  # type: ignore[operator]


def buffer_in_place(net: Net) -> None:
    net.memory.add_(1)  # type: ignore[operator]


def rebound_tensor(net: Net) -> None:
    net.average = 0.9 * net.average + 1


def queue(net: Net) -> None:
    net.past.append(net.layer.weight.sum().item())


def array(net: Net) -> None:
    net.array += 1


def dictionary(net: Net) -> None:
    net.counts["seen"] += 1


def list_in_place(net: Net) -> None:
    net.gates[0] *= 0.9


def settings(net: Net) -> None:
    net.settings.temperature *= 0.9


def new_number(net: Net) -> None:
    net.turns = getattr(net, "turns", 0) + 1  # type: ignore[assignment]
    net.gates[1] = float(net.turns)  # type: ignore[arg-type]


CHANGES = (
    rebound_buffer,
    buffer_in_place,
    rebound_tensor,
    queue,
    array,
    dictionary,
    list_in_place,
    settings,
    new_number,
)


class Warming(torch.optim.SGD):
    """An optimizer with a count of its own, which its state does not have."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.done = 0

    def step(self, closure: Any = None) -> Any:
        self.done += 1
        self.param_groups[0]["lr"] = 0.01 * self.done
        return super().step(closure)


class Labels(Dataset[Any]):
    """Data whose level is one of the class, for all of its objects."""

    level = 0.5

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)) / 10, torch.tensor([self.level])


Train = Callable[[bool], Any]


def compared(train: Train, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Train undisturbed, then broken off and again: both end alike."""
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(folder / "whole"))
    whole = train(False)
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(folder / "run"))
    with suppress(BrokenOffError):
        train(True)
    assert_equal(train(False), whole)


def fit(broken: bool, *, change: Callable[[Net], None] | None = None, **more: Any) -> Any:
    """Three epochs of six batches, with a kill in the second; the weights and what the model keeps."""
    torch.manual_seed(1)
    random.seed(1)
    net, data = Net(), more.get("data") or TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    optimizer = more.get("optimizer", torch.optim.SGD)(net.parameters(), lr=0.05)
    run = slipway.resume(model=net, optimizer=optimizer, save_every=1)
    for epoch in run.epochs(3):
        for inputs, wanted in run.batches(DataLoader(data, 2, shuffle=True)):
            if broken and (epoch, run.batch) == (1, 3):
                break_off(run)
            optimizer.zero_grad()
            ((net(inputs) / net.settings.temperature - wanted) ** 2).mean().backward()
            optimizer.step()
            if change:
                change(net)
            if correct := more.get("correct"):
                correct(data)
    return net.state_dict(), net.extra(), optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_model_keeps_beside_its_state_comes_back(
    change: Callable[[Net], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_run: None, capsys: Any
) -> None:
    compared(lambda broken: fit(broken, change=change), monkeypatch, tmp_path)
    assert "warning" not in capsys.readouterr().err


def test_a_count_of_an_optimizer_of_ones_own_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_run: None
) -> None:
    compared(lambda broken: fit(broken, optimizer=Warming), monkeypatch, tmp_path)


def raise_level(data: Labels) -> None:
    type(data).level += 0.1


def correct_labels(data: TensorDataset) -> None:
    data.tensors[1][3] += 1


@pytest.mark.parametrize("data", ["a level of the class", "labels"])
def test_data_that_the_training_corrects_come_back(
    data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_run: None
) -> None:
    def train(broken: bool) -> Any:
        monkeypatch.setattr(Labels, "level", 0.5)  # as a new process has it
        if data == "labels":
            return fit(broken, correct=correct_labels)
        return fit(broken, data=Labels(), correct=raise_level)

    compared(train, monkeypatch, tmp_path)


def test_labels_that_are_too_many_to_be_saved_are_named(own_run: None, capsys: Any) -> None:
    data = TensorDataset(torch.randn(LONG, 4), torch.randn(LONG, 1))
    net = Net()
    run = slipway.resume(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in run.epochs(2):
        for _ in run.batches(DataLoader(data, LONG // 2)):
            correct_labels(data)
    assert "warning: TensorDataset.tensors is changed" in capsys.readouterr().err


def passes(loader: DataLoader[Any]) -> list[float]:
    return [float(inputs.sum()) for inputs, _ in loader]


@pytest.mark.parametrize("where", ["within an epoch", "in the last epoch", "after the loop"])
def test_a_loader_that_is_read_again_beside_the_loop_has_the_same_order(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_run: None
) -> None:
    """The accuracy on the training data; the statistics of averaged weights after the loop."""

    def train(broken: bool) -> Any:
        torch.manual_seed(1)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 1)), 2, shuffle=True)
        run, found = slipway.resume(model=net, optimizer=optimizer, save_every=1), {}
        kills = {"within an epoch": (1, 3), "in the last epoch": (2, 3)}
        for epoch in run.epochs(3):
            for inputs, wanted in run.batches(loader):
                if broken and kills.get(where) == (epoch, run.batch):
                    break_off(run)
                optimizer.zero_grad()
                ((net(inputs) - wanted) ** 2).mean().backward()
                optimizer.step()
            found[epoch] = [passes(loader), passes(loader)]
        after = passes(loader)
        if broken and where == "after the loop":
            raise BrokenOffError
        return found.get(2), after, passes(loader), net.state_dict()

    def last(broken: bool) -> Any:
        found, *others = train(broken)
        return others if where == "after the loop" else [found, *others]

    compared(last, monkeypatch, tmp_path)


class Game:
    """An environment whose state has its generator's."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rng: Any = np.random.default_rng(3) if kind == "numpy" else random.Random(3)

    def play(self) -> float:
        return float(self.rng.random())

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state if self.kind == "numpy" else self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.kind == "numpy":
            self.rng.bit_generator.state = state["rng"]
        else:
            self.rng.setstate(state["rng"])


class Apart(list[int]):
    """A list of a class of its own, which is not saved as an attribute."""


class Counter:
    """A count that begins where the one before has ended, which is all that its state has."""

    def __init__(self) -> None:
        self.before, self.calls, self.own = 0, 0, Apart()

    def state_dict(self) -> dict[str, int]:
        return {"count": self.before + len(self.own)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.before = state["count"]


def test_what_a_state_sets_by_itself_is_left_to_it(own_run: None) -> None:
    done = []
    for stop in (3, 6, None):
        net, counter = nn.Linear(1, 1), Counter()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run = slipway.resume(model=net, optimizer=optimizer, counter=counter, save_every=1)
        with suppress(BrokenOffError):
            for step in run.steps(9):
                if stop == step:
                    break_off(run)
                net(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                counter.own.append(step)
                counter.calls += 1
        done.append((counter.before, counter.calls))
    assert done == [(0, 3), (3, 6), (6, 9)]


@pytest.mark.parametrize("kind", ["numpy", "python"])
def test_a_generator_in_the_state_of_an_object_is_not_named(kind: str, own_run: None, capsys: Any) -> None:
    net, game = nn.Linear(1, 1), Game(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = slipway.resume(model=net, optimizer=optimizer, game=game)
    for _ in run.steps(20):
        net(torch.tensor([game.play()])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert "not passed" not in capsys.readouterr().err


class ScaledLoss(nn.Module):
    """A loss that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return found.square().mean() * self.steps


@pytest.mark.parametrize("passed", [False, True])
def test_a_loss_whose_numbers_change_is_named_unless_it_is_passed(passed: bool, own_run: None, capsys: Any) -> None:
    net, criterion, fixed = nn.Linear(1, 1), ScaledLoss(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    more: dict[str, Any] = {"criterion": criterion} if passed else {}
    run = slipway.resume(model=net, optimizer=optimizer, **more)
    for _ in run.steps(10):
        criterion(net(torch.ones(1, 1))).backward()
        optimizer.step()
        optimizer.zero_grad()
    said = capsys.readouterr().err
    assert ('ScaledLoss "criterion"' in said) != passed
    assert "CrossEntropyLoss" not in said, fixed


def loop_with(early: Callable[[int, nn.Module], Any]) -> Iterator[nn.Module]:
    net = nn.Sequential(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = slipway.resume(model=net, optimizer=optimizer)
    for epoch in run.epochs(3):
        early(epoch, net)
        for inputs in run.batches(DataLoader(torch.randn(8, 4), 4)):  # type: ignore[arg-type]
            net(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield net


@pytest.mark.parametrize(
    ("early", "named"),
    [
        (lambda epoch, net: net(torch.ones(1, 4)), True),
        (lambda epoch, net: net[0](torch.ones(1, 4)), True),
        (lambda epoch, net: copy.deepcopy(net), True),
        (lambda epoch, net: epoch or net(torch.ones(1, 4)), False),  # a validation before the training
        (lambda epoch, net: pickle.dumps(net), False),
        (lambda epoch, net: net.train(), False),
    ],
    ids=["used", "a part of it", "copied", "once", "pickled", "nothing"],
)
def test_a_model_that_each_epoch_uses_before_its_data_is_named(
    early: Callable[[int, nn.Module], Any], named: bool, own_run: None, capsys: Any
) -> None:
    [*models] = loop_with(early)
    assert ("before its data are read" in capsys.readouterr().err) == named
    assert not models[-1]._forward_pre_hooks, "the hooks are gone"
