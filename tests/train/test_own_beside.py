"""What a script reads, keeps and adds up beside the objects that it passes: it comes back after a kill, or a line names it."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_own_attributes import compared
from test_own_rhythm import break_off
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slipway
from slipway.train.user.data_attributes import LARGEST

pytestmark = [pytest.mark.pull, pytest.mark.usefixtures("own_run")]
Make = Callable[[], Iterable[Any]]


def loader(size: int = 12) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(float(size))[:, None]), 2, shuffle=True)


def begin(width: int = 1, **more: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model, its optimizer and a run, as at the start of a process."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, slipway.resume(model=model, optimizer=optimizer, save_every=1, **more)


def teach(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(inputs / 10).square().mean().backward()
    optimizer.step()


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def noisy() -> Iterator[list[torch.Tensor]]:
    while True:
        yield [torch.rand(2, 1) + random.random() + np.random.rand()]


class Prefetcher:
    """Takes the next batch before it returns one."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        ahead = next(batches)
        for each in batches:
            yield ahead
            ahead = each
        yield ahead


SOURCES: dict[str, Make] = {
    "a cycle": lambda: itertools.cycle(loader()),
    "a generator": lambda: endless(loader()),
    "noise": noisy,
    "prefetched": lambda: Prefetcher(endless(loader())),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kill", [5, 10])
def test_what_is_read_again_draws_the_same_whatever_the_script_draws(
    source: str, kill: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(broken: bool) -> Any:
        model, optimizer, run = begin()
        for [inputs] in run.batches(SOURCES[source]()):
            if broken and run.step == kill:
                break_off(run)
            teach(model, optimizer, inputs + torch.rand(2, 1) + random.random())
            if run.step == 20:
                break
        run.finish()
        return model.state_dict()

    compared(train, monkeypatch, tmp_path)


def test_two_passes_that_draw_nothing_else_do_not_draw_the_same() -> None:
    found: list[list[torch.Tensor]] = []
    _, _, run = begin()
    for _ in run.epochs(2):
        for _ in range(2):
            found.append([each for [each] in run.batches(itertools.islice(noisy(), 3))])
    assert len({each.sum().item() for several in found for each in several}) == 12


@pytest.mark.parametrize("outside", [True, False])
def test_a_prefetcher_around_the_batches_is_named(outside: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, run = begin()
    for _ in run.epochs(2):
        for [inputs] in Prefetcher(run.batches(loader())) if outside else run.batches(Prefetcher(loader())):
            teach(model, optimizer, inputs)
    assert capsys.readouterr().err.count("Put the prefetcher inside: run.batches(Prefetcher(loader)).") == outside


def accumulated(run: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, [inputs] in run.enumerate(loader(14)):
        model(inputs).mean().backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def first_left_out(run: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for [inputs] in run.batches(loader()):
        if run.batch:
            teach(model, optimizer, inputs)


def validated(run: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    validation = loader(8)
    for [inputs] in run.batches(loader()):
        teach(model, optimizer, inputs)
        if run.step % 2:
            assert len([*validation]) == 4
            assert next(iter(validation))


@pytest.mark.parametrize("epoch", [accumulated, first_left_out, validated])
def test_loops_that_resume_exactly_are_not_named(
    epoch: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, run = begin()
    for _ in run.epochs(4):
        epoch(run, model, optimizer)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("every", [1, 4])
def test_an_iterator_that_a_validation_reads_on_is_named(every: int, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, run = begin()
    validation = loader(8)
    batches = iter(validation)
    for _ in run.epochs(3):
        for [inputs] in run.batches(loader()):
            teach(model, optimizer, inputs)
            if run.step % every == 0 and next(batches, None) is None:
                batches = iter(validation)
    assert capsys.readouterr().err.count("a DataLoader over TensorDataset is read without run.batches") == 1


class Criterion:
    """A loss with centers that move."""

    def __init__(self) -> None:
        self.centers = torch.zeros(2, 1)


@pytest.mark.parametrize("kill", ["within an epoch", "before its data"])
def test_tensors_and_arrays_that_a_script_changes_where_they_are_come_back(
    kill: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(broken: bool) -> Any:
        queue, weights, criterion = torch.zeros(20_000), np.ones(6), Criterion()
        prompt, shadow = torch.zeros(1, requires_grad=True), {"a": torch.zeros(1)}
        model, optimizer, run = begin()
        late, total = torch.zeros(1), torch.zeros(1)
        for epoch in run.epochs(3):
            if broken and (epoch, kill) == (1, "before its data"):
                break_off(run)
            total.zero_()
            late += model.weight.item()
            for [inputs] in run.batches(loader()):
                if broken and (epoch, run.batch, kill) == (1, 3, "within an epoch"):
                    break_off(run)
                beside = queue[0] + weights.sum() + criterion.centers.sum() + shadow["a"] + late + total
                prompt.grad = None
                teach(model, optimizer, inputs + prompt + float(beside) / 100)
                with torch.no_grad():
                    prompt -= 0.1 * prompt.grad  # type: ignore[operator]
                queue[run.step % 3] = inputs[0, 0]
                weights[run.batch] += inputs[0, 0].item()
                criterion.centers.lerp_(inputs, 0.1)
                shadow["a"].lerp_(model.weight.detach()[0], 0.5)
                total += inputs.mean()
        return model.state_dict(), queue, weights.tolist(), criterion.centers, shadow, late, total, prompt.detach()

    compared(train, monkeypatch, tmp_path)
    assert "warning" not in capsys.readouterr().err


class Replay:
    """Past inputs, and how many there were."""

    def __init__(self) -> None:
        self.past = deque[Any](maxlen=4)
        self.seen, self.average, self.file = 0, None, None

    def add(self, inputs: torch.Tensor) -> None:
        self.past.append((inputs, inputs.numpy().copy(), self.seen))
        self.seen += 1
        self.average = inputs if self.average is None else 0.9 * self.average + 0.1 * inputs  # type: ignore[assignment]


@pytest.mark.parametrize("kill", ["within an epoch", "before its data"])
def test_containers_and_objects_that_a_script_changes_come_back(
    kill: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(broken: bool) -> Any:
        queue, weights, replay = deque[Any](maxlen=3), [1.0] * 6, Replay()
        itself: list[Any] = []
        itself.append(itself)
        model, optimizer, run = begin()
        smooth: dict[str, torch.Tensor] = {}

        def smoothed(gradient: torch.Tensor) -> torch.Tensor:
            smooth["weight"] = gradient + 0.5 * smooth.get("weight", torch.zeros(1))
            return smooth["weight"]

        model.weight.register_hook(smoothed)  # type: ignore[operator, union-attr]
        for epoch in run.epochs(3):
            if broken and (epoch, kill) == (1, "before its data"):
                break_off(run)
            replay.seen += 10
            for [inputs] in run.batches(loader()):
                if broken and (epoch, run.batch, kill) == (1, 3, "within an epoch"):
                    break_off(run)
                beside = sum([*(each.sum() for each in queue), *(each[1].sum() for each in replay.past)])
                teach(model, optimizer, inputs + (float(beside) + sum(weights) + replay.seen) / 100)
                queue.append(inputs)
                weights[run.batch] += inputs[0, 0].item()
                replay.add(inputs)
        return model.state_dict(), [*queue], weights, replay.seen, [each[0] for each in replay.past], replay.average

    compared(train, monkeypatch, tmp_path)
    assert "warning" not in capsys.readouterr().err


class Opener:
    """Opens a file and reads a clock where it is used first."""

    def __init__(self) -> None:
        self.opened, self.file = False, None
        self.clock = Clock()

    def write(self) -> None:
        if not self.opened:
            self.opened, self.file = True, object()  # type: ignore[assignment]
        assert self.file
        self.clock.counted, self.clock.last = self.clock.counted + 1, time.monotonic()


class Clock:
    """How often something was done, and when the last time."""

    def __init__(self) -> None:
        self.counted, self.last = 0, 0.0


def test_what_an_object_has_opened_is_opened_again_and_no_time_comes_back() -> None:
    for steps in (2, 4):
        opener = Opener()
        model, optimizer, run = begin()
        for step in run.steps(steps):
            if step == 2:
                assert (opener.opened, opener.clock.counted, opener.clock.last) == (False, 2, 0.0)
            opener.write()
            teach(model, optimizer, torch.ones(1, 1))


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_queue_of_tensors_that_will_be_too_long_to_be_saved_is_named(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    replay, held, losses, samples = Replay(), deque[Any](maxlen=size), deque[float](maxlen=size), [torch.ones(2)] * 5000
    replay.past = deque(maxlen=size)
    outputs: dict[str, Any] = {}
    ignored = deque[Any](maxlen=size)
    model, optimizer, run = begin(ignore=(ignored,))
    for _ in run.steps(4):
        teach(model, optimizer, samples[0][:1])
        replay.add(torch.ones(1))
        held.append((torch.ones(2), 1))
        outputs["layer"] = torch.ones(LARGEST)  # in each step another one
        ignored.append(torch.ones(2))
        losses.append(1.0)
    said = capsys.readouterr().err
    for name in ("held (test_own_beside.py:", "replay.past (test_own_beside.py:"):
        assert said.count(f"warning: {name}") == (size > 10)
    assert said.count("warning") == 2 * (size > 10)


def test_a_generator_that_was_passed_and_makes_the_batches_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(broken: bool) -> Any:
        dice = torch.Generator().manual_seed(3)
        model, optimizer, run = begin(dice=dice)
        data = TensorDataset(torch.arange(12.0)[:, None])
        for [inputs] in run.batches(endless(DataLoader(data, 2, shuffle=True, generator=dice))):
            if broken and run.step == 8:
                break_off(run)
            teach(model, optimizer, inputs)
            if run.step == 20:
                break
        run.finish()
        return model.state_dict()

    compared(train, monkeypatch, tmp_path)


def test_a_tensor_that_is_too_large_to_be_saved_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slipway.train.user.script_tensors.MOST", 100)
    replay, ignored, read = torch.zeros(100), torch.zeros(100), torch.zeros(100)
    model, optimizer, run = begin(ignore=(ignored,))
    for step in run.steps(5):
        teach(model, optimizer, read[:1])
        replay[step] = ignored[step] = 1
    said = capsys.readouterr().err
    assert said.count("warning: replay (test_own_beside.py:") == said.count("warning") == 1


@pytest.mark.parametrize(
    ("zeroes", "named"),
    [
        (lambda step, optimizer: None, True),
        (lambda step, optimizer: step % 4 or optimizer.zero_grad(), True),
        (lambda step, optimizer: optimizer.zero_grad(), False),
        (lambda step, optimizer: optimizer.zero_grad(set_to_none=False), False),
    ],
    ids=["never", "now and then", "in each step", "to zero"],
)
def test_gradients_of_the_steps_before_are_named(
    zeroes: Callable[[int, Any], Any], named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, run = begin()
    for step in run.steps(12):
        zeroes(step, optimizer)
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    assert ("warning: SGD steps with gradients that the step before has used" in capsys.readouterr().err) == named


def by_hand(model: nn.Module) -> None:
    gradients = torch.autograd.grad(model(torch.ones(1, 1)).sum(), [*model.parameters()])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.copy_(gradient)


def looked_at(model: nn.Module) -> None:
    torch.autograd.grad(model(torch.ones(1, 1)).sum(), [*model.parameters()])
    model.zero_grad(set_to_none=False)
    model(torch.ones(1, 1)).sum().backward()


def zeroed_through_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    model(torch.ones(1, 1)).sum().backward()


def replaced_and_added_to(model: nn.Module) -> None:
    by_hand(model)
    model(torch.ones(1, 1)).sum().backward()


@pytest.mark.parametrize("backward", [by_hand, looked_at, zeroed_through_data, replaced_and_added_to])
def test_gradients_that_are_replaced_before_their_step_are_not_named(
    backward: Callable[[nn.Module], None], capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, run = begin()
    for _ in run.steps(12):
        backward(model)
        optimizer.step()
    assert "warning" not in capsys.readouterr().err


def test_gradients_that_another_loss_leaves_and_that_are_zeroed_before_their_step_are_not_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, judge = nn.Linear(1, 1), nn.Linear(1, 1)
    first, second = (torch.optim.SGD(each.parameters(), 0.1) for each in (made, judge))
    run = slipway.resume(made=made, judge=judge, optimizers=[first, second])
    for _ in run.steps(12):
        second.zero_grad(set_to_none=False)
        judge(torch.ones(1, 1)).sum().backward()
        second.step()
        first.zero_grad()
        judge(made(torch.ones(1, 1))).sum().backward()
        first.step()
    assert "warning" not in capsys.readouterr().err
