"""A process of the jobs in ddp_job.py: Slipway's own trainings, without its launcher, joined by gloo."""

import io
import os
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_job import Block, Side
from torch.nn.parallel import DistributedDataParallel

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.train.loop.fit import enforce_budget, next_word
from slipway.train.loop.step import take_step
from slipway.train.loop.training import Training, begin_training
from slipway.train.parallel.data_parallel import DataParallel
from slipway.train.text import corpus
from slipway.train.text.files import read_stdlib
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import leave_group, open_group, read_place
from slipway.train.workloads.gpt import make_task

CPU = torch.device("cpu")


class Worker:
    """What a process of a job can be asked for."""

    def __init__(self, context: Context, folder: Path, sides: Mapping[str, Side]) -> None:
        """Make the trainings of all sides."""
        self._context = context
        self._trainings = {name: make_training(side, context, folder) for name, side in sides.items()}

    def take(self, side: str, steps: int) -> Block:
        """Take steps as `slipway.train.loop.fit` does between two reports."""
        training = self._trainings[side]

        def step() -> None:
            next_word(training)
            take_step(training, "train")
            enforce_budget(training, training.numbers.late())

        return self._time(step, steps)

    def loss(self, side: str) -> float:
        """This process's own mean loss of all steps that were taken since this was asked for."""
        training = self._trainings[side]
        steps, training.reported = training.step - training.reported, training.step
        mean = float(training.numbers.losses) / steps
        training.numbers.restart()
        return mean

    def parameters(self, side: str) -> int:
        """How many numbers a gradient has."""
        return self._trainings[side].parallel.parameters

    def buckets(self, side: str) -> int:
        """In how many buckets the gradients are exchanged; 0 where they are not."""
        model = parallel(self._trainings[side]).model
        if not isinstance(model, DistributedDataParallel):
            return 0
        data: Mapping[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return len(str(data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]).split(","))

    def reduce(self, elements: int, calls: int) -> Block:
        """Sum a tensor over all processes again and again, with nothing else to do."""
        tensor = torch.zeros(elements)
        return self._time(lambda: dist.all_reduce(tensor), calls)

    def agree(self, calls: int) -> Block:
        """Exchange the stop flag again and again, with nothing else to do."""
        return self._time(self._context.agree, calls)

    def _time(self, call: Callable[[], object], calls: int) -> Block:
        """Begin together with all others."""
        self._context.wait_for_all()
        cpu, moments = time.process_time(), [time.perf_counter()]
        for _ in range(calls):
            call()
            moments.append(time.perf_counter())
        each = [after - before for before, after in pairwise(moments)]
        return Block(moments[-1] - moments[0], time.process_time() - cpu, each)


def work(rank: int, processes: int, port: int, folder: Path, sides: Mapping[str, Side], end: Any) -> None:
    """The life of a process: it joins the others, makes its trainings, and answers until nobody asks any more."""
    torch.set_num_threads(1)
    corpus.read_stdlib = cache(read_stdlib)  # type: ignore[attr-defined]  # all sides learn from the same text
    folder = folder / f"{processes}-{rank}"
    folder.mkdir()
    os.environ |= {
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{processes}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }
    place = read_place({**os.environ, "SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder)})
    context = Context(place, CPU, open_group(place, CPU), Heartbeat(folder / "heartbeat.json"))
    with redirect_stdout(io.StringIO()):
        worker = Worker(context, folder, sides)
    try:
        while True:
            question, *words = end.recv()
            end.send(getattr(worker, question)(*words))
    except (EOFError, BrokenPipeError):
        del worker
        context.close()
        leave_group()


def make_training(side: Side, context: Context, folder: Path) -> Training:
    """A training that is ready for its first step, with a stop flag of its own."""
    place, beat = context.place, Heartbeat(folder / "heartbeat.json")
    own = context.alone(folder) if side.alone else Context(place, CPU, context.side, beat)
    options = parse(GptOptions, side.words.split())
    training = begin_training(make_task(options, own), options, own)
    if not side.view:
        data_parallel, model = parallel(training), training.task.model
        data_parallel.model = model  # Slipway's own must be gone before there is another
        data_parallel.model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    training.loader.start(0)
    training.parallel.warm_up_ddp(training.loader.example)
    own.begin_stop_exchange()
    return training


def parallel(training: Training) -> DataParallel:
    """How its gradients come about; there are no pipelines here."""
    assert isinstance(training.parallel, DataParallel)
    return training.parallel
