"""Slipway's own loop as a side of a comparison: a workload's task and what trains it, outside any job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType, MethodType

import torch
from torch import nn

from slipway.train.context import Context
from slipway.train.heartbeat import Heartbeat
from slipway.train.loop import mind, next_word, report
from slipway.train.metrics import MetricsFile, Progress
from slipway.train.options import WORKLOADS, Common, parse
from slipway.train.place import read_place
from slipway.train.step import take_step
from slipway.train.task import Task
from slipway.train.training import Training, prepare


class Quiet(Context):
    """A context that says nothing: a bench has its own tables."""

    def say(self, text: str) -> None:
        """Nothing."""


def open_context(device: torch.device, folder: Path) -> Context:
    """A place for one process, with its files in `folder`."""
    place = read_place({"SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder), "SLIPWAY_DEVICE": device.type})
    return Quiet(place, device, None, Heartbeat(folder / "heartbeat.json"))


def make_training(
    words: Sequence[str], device: torch.device, folder: Path, alter: Callable[[Task], Task] = lambda task: task
) -> Training:
    """A training as `slipway WORDS` would have it, `alter`ed before it begins, at step 0."""
    workload, *rest = words
    context = open_context(device, folder)
    options = parse(WORKLOADS[workload], rest)
    assert isinstance(options, Common)
    task = import_module(f"slipway.train.workloads.{workload}").make_task(options, context)
    stand_apart(task.model)
    return prepare(alter(task), options, context)


def stand_apart(model: nn.Module) -> None:
    """See to it that a model is compiled by itself, although others of its class are in this process.

    Dynamo keeps what it compiles with the code of `forward`, for all models of a class, and what it compiled without DDP
    would do for one with DDP, whose own is cut where gradients leave. So this one gets a copy of the code.
    """
    forward = type(model).forward
    copy = FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", forward.__defaults__, forward.__closure__
    )
    model.forward = MethodType(copy, model)


class LastLine(MetricsFile):
    """Keeps what would be the last line of metrics.jsonl."""

    def __init__(self) -> None:
        """Nothing is written to a file."""
        super().__init__(None)
        self.values: dict[str, float] = {}

    def write(self, step: int, **values: float) -> None:
        """Keep a line."""
        self.values = values


class Loop:
    """What slipway.train.loop does at each step, with its reports, but for snapshots and evaluations."""

    def __init__(self, training: Training) -> None:
        """Go on where the training stands."""
        self.training = training
        self._metrics = LastLine()
        task, units = training.task, training.batch_size * training.task.units_per_sample
        self._progress = Progress(training.total, training.step, False, False, task.unit, units)
        training.loader.start(training.position)
        training.parallel.settle(training.loader.example)

    def take(self, steps: int) -> None:
        """Take so many steps. The host waits for the device only where a line of progress is due."""
        training = self.training
        for _ in range(steps):
            next_word(training)
            rate = take_step(training, "train")
            training.context.beat("train")
            mind(training, training.numbers.late())
            self._progress.advance()
            if training.step % training.options.log_every == 0:
                report(training, rate, self._metrics, self._progress, ended_epoch=False)

    @property
    def loss(self) -> float:
        """The mean loss of the steps up to the last line of progress."""
        return self._metrics.values["loss"]
