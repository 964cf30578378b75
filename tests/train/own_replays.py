"""A training loop of a user's own whose micro-batches are replayed, in several forms (`FORMS`).

As a program: `own_replays.py FORM RESULTS EVERY [RANK STEP TIMES]`. Where RANK is given, so many of its replays, from that of STEP
on, have a wrong gradient.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from own_loops import Numbers
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import slipway
from slipway.train.user import replaying
from slipway.train.user.run import ResumableRun

Loss = Callable[..., Any]


class Branches(nn.Module):
    """A model with BatchNorm and dropout, of which odd epochs use another part than even ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.ends = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x: torch.Tensor, branch: int = 0) -> torch.Tensor:
        found: torch.Tensor = self.ends[branch](self.first(x))
        return found


def plain(ddp: nn.Module) -> Loss:
    """One loss of a batch that is nested, with random numbers of each generator."""

    def loss_of(batch: dict[str, torch.Tensor], branch: int) -> torch.Tensor:
        noise = torch.rand(()) * random.random() * np.random.rand()
        return functional.mse_loss(ddp(batch["x"], branch), batch["y"]) * (1 + noise)

    return loss_of


def with_backward(ddp: nn.Module) -> Loss:
    """Two losses, each with a backward in the function itself, which begins with zero_grad."""
    loss_of, scaler = plain(ddp), torch.amp.GradScaler("cpu", init_scale=64.0)

    def compute(batch: dict[str, torch.Tensor], branch: int) -> None:
        ddp.zero_grad()
        loss_of(batch, branch).backward()
        scaler.scale(loss_of(batch, branch)).backward()

    return compute


def in_half_precision(ddp: nn.Module) -> Loss:
    """One loss, with autocast in the function."""
    loss_of = plain(ddp)

    def compute(batch: dict[str, torch.Tensor], branch: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(batch, branch)

    return compute


# What is replayed; how DistributedDataParallel is made; the micro-batches of a step.
FORMS: dict[str, tuple[Callable[[nn.Module], Loss], dict[str, bool], int]] = {
    "plain": (plain, {"find_unused_parameters": True}, 1),
    "accumulating": (plain, {"find_unused_parameters": True}, 2),
    "static": (plain, {"static_graph": True}, 1),
    "backward": (with_backward, {"find_unused_parameters": True}, 1),
    "half": (in_half_precision, {"find_unused_parameters": True}, 1),
}


BATCHES = 6  # in an epoch


def train(
    form: str,
    every: int | str,
    watch: Callable[[ResumableRun], object],
    epochs: int = 4,
    save_every: int = 5,
    compiled: bool = False,
) -> nn.Module:
    """Train for some epochs; the model."""
    make, options, accumulate = FORMS[form]
    model = Branches()
    if compiled:
        model.compile(backend="aot_eager")  # its own compiler takes minutes
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = Numbers(4 * BATCHES * dist.get_world_size(), augmented=True)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, seed=5))
    run = slipway.resume(model=ddp, optimizer=optimizer, save_every=save_every, memory_every=1)
    watch(run)
    replayed, loss_of = make(ddp), plain(ddp)
    example = {"x": torch.ones(4, 3), "y": torch.ones(4, 1)}
    run.warm_up(lambda: loss_of(example, 0))
    for epoch in run.epochs(epochs):
        branch = 0 if options.get("static_graph") else epoch % 2
        for number, (_, x, y) in enumerate(run.batches(loader)):
            with torch.autocast("cpu", torch.bfloat16, enabled=form == "half"):
                loss = loss_of({"x": x, "y": y}, branch) / accumulate
                run.replay(replayed, {"x": x, "y": y}, branch, every=every)  # also between forward and backward
            loss.backward()
            if number % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
    return model


def main(form: str, results: str, every: str, *wrong: str) -> None:
    """Be a process of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for begin in (torch.manual_seed, np.random.seed, random.seed):
        begin(1 + rank)
    model = train(form, int(every), lambda run: compute_wrongly(run, *map(int, wrong or (-1, 0, 0))))
    torch.save({"model": model.state_dict(), "random": torch.get_rng_state()}, f"{results}-{rank}.pt")


def compute_wrongly(run: ResumableRun, rank: int, step: int, times: int) -> None:
    """Have one gradient be wrong on that rank, from that step on, in so many replays."""
    compute_apart, spoilt = replaying.compute_apart, itertools.count()

    def compute(*args: Any) -> Any:
        loss, gradients = compute_apart(*args)
        if rank == int(os.environ["RANK"]) and run.step >= step and next(spoilt) < times:
            print(f"wrong at step {run.step}", flush=True)
            gradients[0] = gradients[0] * 1.001  # type: ignore[operator]
        return loss, gradients

    replaying.compute_apart = compute
