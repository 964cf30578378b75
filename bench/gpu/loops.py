"""Slipway's own loop as a side of a comparison: a workload's task and what trains it, outside any job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from types import FunctionType, MethodType

import torch
import torch.distributed as dist
from torch import nn

from slipway.options import WORKLOADS, Common, parse
from slipway.train.loop.fit import enforce_budget, next_word, report_step
from slipway.train.loop.metrics import Progress
from slipway.train.loop.step import learning_rate, take_step
from slipway.train.loop.training import Training, begin_training
from slipway.train.observe.sinks import Sinks
from slipway.train.parallel.data_parallel import DataParallel, average_gradients
from slipway.train.task import Task
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import leave_group, read_place

COPIES = count(1)  # of the code of `forward`


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
    return begin_training(alter(task), options, context)


def stand_apart(model: nn.Module) -> None:
    """See to it that a model is compiled by itself, although others of its class are in this process.

    Dynamo keeps what it compiles with the code of `forward`, for all models of a class, and what it compiled without DDP
    would do for one with DDP, whose own is cut where gradients leave. By file, line and name of that code it also remembers
    the shapes of what came in, and once they differ it compiles for all shapes. So this one gets a copy with another name.
    """
    forward = type(model).forward
    code = forward.__code__.replace(co_name=f"forward_{next(COPIES)}")
    copy = FunctionType(code, forward.__globals__, "forward", forward.__defaults__, forward.__closure__)
    model.forward = MethodType(copy, model)


@contextmanager
def group_of_one(device: torch.device, folder: Path) -> Iterator[None]:
    """A process group of this process alone, over NCCL on a GPU, with its store in `folder`.

    What averages gradients in it must be gone when the block ends (see `leave_group`).
    """
    backend, own = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=own)
    try:
        yield
    finally:
        leave_group()


class LastLine(Sinks):
    """Keeps what would be the last line of metrics.jsonl."""

    def __init__(self) -> None:
        """Nothing is written to a file."""
        super().__init__(None, (), print)
        self.values: dict[str, float] = {}

    def write(self, step: int, **values: float) -> None:
        """Keep a line."""
        self.values = values


class Loop:
    """What slipway.train.loop.fit does at each step, with its reports, but for snapshots and evaluations."""

    def __init__(self, training: Training) -> None:
        """Go on where the training stands."""
        self.training = training
        self._metrics = LastLine()
        task, units = training.task, training.batch_size * training.task.units_per_sample
        self._progress = Progress(training.total, training.step, False, False, task.unit, units)
        training.loader.start(training.position)
        training.parallel.warm_up_ddp(training.loader.example)

    def average(self) -> None:
        """From here on average gradients over the process group, as several processes do. Before the first step."""
        training, parallel = self.training, self.training.parallel
        assert isinstance(parallel, DataParallel)
        parallel.model = average_gradients(parallel.judged, training.options, training.context)
        parallel.warm_up_ddp(training.loader.example)

    def take(self, steps: int) -> None:
        """Take so many steps. The host waits for the device only where a line of progress is due."""
        training = self.training
        for _ in range(steps):
            next_word(training)
            rate = take_step(training, "train")
            training.context.beat("train")
            enforce_budget(training, training.numbers.late())
            self._progress.advance()
            if training.step % training.options.log_every == 0:
                report_step(training, rate, self._metrics, self._progress, ended_epoch=False)

    def rate(self, step: int) -> float:
        """The learning rate of a step, for sides that shall have the same."""
        return learning_rate(self.training.options, step, self.training.total)

    @property
    def loss(self) -> float:
        """The mean loss of the steps up to the last line of progress."""
        return self._metrics.values["loss"]
