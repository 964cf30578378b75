"""Loops of a user's own with a mistake that only two processes can make. As a program: `bad_loops.py MISTAKE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slipway
from slipway.train.user.run import ResumableRun

Loop = Callable[[ResumableRun, Callable[..., None], int], None]


def train(run: ResumableRun, step: Callable[[], None], batches: int) -> None:
    """Three epochs of so many batches."""
    for _ in run.epochs(3):
        for _ in run.batches(range(batches)):
            step()


def fewer_batches(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    train(run, step, 4 - rank)


def no_batches_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    train(run, step, 0 if rank else 4)


def fewer_batches_at_the_end(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for epoch in run.epochs(3):
        for _ in run.batches(range(3 if rank and epoch == 2 else 4)):
            step()


def broken_off_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for epoch in run.epochs(3):
        for _ in run.batches(range(4)):
            step()
        if rank and epoch == 1:
            break


def batches_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for _ in run.epochs(3):
        batches: Iterable[int] = run.batches(range(4)) if rank else range(4)
        for _ in batches:
            step()


def exception_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for epoch in run.epochs(3):
        for batch in run.batches(range(4)):
            step()
            if rank and (epoch, batch) == (1, 2):
                raise KeyError("label")


def end_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for epoch in run.epochs(3):
        for batch in run.batches(range(4)):
            step()
            if rank and (epoch, batch) == (1, 2):
                sys.exit(0)


def no_batches(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    train(run, step, 0)


def validated_on_one_rank(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for _ in run.epochs(3):
        for _ in run.batches(range(4)):
            step()
        if rank == 0:
            assert list(range(5)) == [0, 1, 2, 3, 4]


def forked(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    for _ in run.epochs(3):
        for _ in run.batches(range(4)):
            step()
        child = os.fork()
        if not child:
            run.boundary()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def other_settings(run: ResumableRun, step: Callable[[], None], rank: int) -> None:
    train(run, step, 4)


def no_gradient_on_one_rank(run: ResumableRun, step: Callable[..., None], rank: int) -> None:
    """Of the next step, when a snapshot is due: only the other rank knows that one is pending."""
    for _ in run.steps(12):
        step()
        step(1 - rank, False)


SAVE_EVERY = {"other_settings": (3, 4), "no_gradient_on_one_rank": (2, 2)}  # by loop, of each rank
LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        fewer_batches,
        no_batches_on_one_rank,
        fewer_batches_at_the_end,
        broken_off_on_one_rank,
        batches_on_one_rank,
        exception_on_one_rank,
        end_on_one_rank,
        no_batches,
        validated_on_one_rank,
        forked,
        other_settings,
        no_gradient_on_one_rank,
    )
}


def main(name: str) -> None:
    """Run a loop in this process, one of several."""
    # longer than the 30 s after which a rank that waits at its end says so
    dist.init_process_group("gloo", timeout=timedelta(seconds=45))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(share: float = 1.0, update: bool = True) -> None:
        optimizer.zero_grad()
        with nullcontext() if update else model.no_sync():
            (model(torch.ones(2, 3)).sum() * share).backward()
        if update:
            optimizer.step()

    every = SAVE_EVERY[name][dist.get_rank()] if name in SAVE_EVERY else None
    run = slipway.resume(model=model, optimizer=optimizer, save_every=every)
    LOOPS[name](run, step, dist.get_rank())
    print(f"rank {dist.get_rank()} has done {run.step} steps", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
