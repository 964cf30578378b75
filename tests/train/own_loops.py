"""Training loops as users write them, each with the lines of `slipway.resume`. `seen` gets the number of each sample trained on."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

import slipway

Loop = Callable[..., dict[str, Any]]
SAVE_EVERY = 7  # steps between two snapshots on the disk, in a job of several processes


class Numbers(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Samples that know their number; `augmented` ones draw from all random generators."""

    def __init__(self, size: int = 52, augmented: bool = False) -> None:
        self.size, self.augmented = size, augmented

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 10, (index * 7 % 5) / 5, 1.0])
        if self.augmented:
            x = x + torch.rand(3) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1
        return index, x, torch.tensor([float(index % 3)])


class Stream(IterableDataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """The same in their order, as one can only iterate over them."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        yield from map(Numbers().__getitem__, range(52))


class Own:
    """An iterable with a state of its own."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        while self.place < 13:
            self.place += 1
            number, x, y = Numbers()[self.place - 1]
            yield [torch.tensor([number]), x[None], y[None]]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def make_model(*more: nn.Module) -> nn.Module:
    """A small model with dropout."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), *more, nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def wrapped(model: nn.Module) -> nn.Module:
    """In DistributedDataParallel where there are several processes."""
    return DistributedDataParallel(model) if dist.is_initialized() else model


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(x), y)


def sampler_for(data: Dataset[Any]) -> Any:
    """What divides the samples among the processes."""
    return DistributedSampler(data, seed=5) if dist.is_initialized() else RandomSampler(data)  # type: ignore[arg-type]


def classifier(seen: list[int], **more: Any) -> dict[str, Any]:
    """Epochs with augmentation, BatchNorm, a schedule by epoch, a validation loader, and a value of the user's."""
    model = make_model(nn.BatchNorm1d(8))
    ddp = wrapped(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    data = Numbers(augmented=True)
    loader = DataLoader(data, 4, sampler=sampler_for(data), drop_last=True)
    run = slipway.resume(model=ddp, optimizer=optimizer, scheduler=scheduler, **more)
    run.warm_up(lambda: loss_of(ddp, torch.ones(4, 3), torch.ones(4, 1)))
    for epoch in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = loss_of(ddp, x, y)
            loss.backward()
            optimizer.step()
            seen.extend(numbers.tolist())
            run.log(loss=loss.item())
        scheduler.step()
        run.state.setdefault("best", []).append((epoch, scheduler.get_last_lr()[0]))
        model.eval()
        with torch.no_grad():
            run.log(val_loss=sum(loss_of(model, x, y).item() for _, x, y in DataLoader(Numbers(8), 4)))
        model.train()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "state": run.state}


def with_workers(seen: list[int], **more: Any) -> dict[str, Any]:
    """Augmentation in persistent worker processes, seeded sample by sample."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Numbers(augmented=True)
    loader = DataLoader(data, 4, shuffle=True, num_workers=2, persistent_workers=True)
    run = slipway.resume(model=model, optimizer=optimizer, **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader, exact_augmentation=True):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer}


def accumulating(seen: list[int], **more: Any) -> dict[str, Any]:
    """Gradient accumulation over two micro-batches, and a mean of the weights that is a model as well."""
    model = make_model()
    ema = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, new, _: 0.9 * mean + 0.1 * new)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(8))
    run = slipway.resume(model=model, optimizer=optimizer, ema=ema, **more)
    for _ in run.epochs(2):
        for number, (numbers, x, y) in enumerate(run.batches(loader)):
            (loss_of(model, x, y) / 2).backward()
            seen.extend(numbers.tolist())
            if run.state.setdefault("micro", 0) % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=number % 3 == 0)
                ema.update_parameters(model)
            run.state["micro"] += 1
    return {"model": model, "optimizer": optimizer, "ema": ema}


def half_precision(seen: list[int], **more: Any) -> dict[str, Any]:
    """float16 with a gradient scaler, whose first steps are left out."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
    loader = DataLoader(Numbers(), 4, shuffle=True)
    run = slipway.resume(model=model, optimizer=optimizer, scaler=scaler, **more)
    for _ in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer, "scaler": scaler}


def gan(seen: list[int], **more: Any) -> dict[str, Any]:
    """Two models and two optimizers; the second loss leaves gradients in the first model."""
    first, second = make_model(), nn.Linear(1, 3)
    one = torch.optim.Adam(first.parameters(), lr=0.01)
    two = torch.optim.Adam(second.parameters(), lr=0.01)
    sampler = WeightedRandomSampler(torch.arange(1.0, 53.0).tolist(), 52)
    loader = DataLoader(Numbers(), 4, sampler=sampler)
    run = slipway.resume(model={"d": first, "g": second}, optimizer=[one, two], **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader):
            first.zero_grad()
            loss_of(first, x, y).backward()
            first(second(torch.randn(4, 1)).detach()).mean().backward()
            one.step()
            second.zero_grad()
            (-first(second(torch.randn(4, 1))).mean()).backward()
            two.step()
            seen.extend(numbers.tolist())
    return {"d": first, "g": second, "one": one, "two": two}


def plateau(seen: list[int], **more: Any) -> dict[str, Any]:
    """A warm-up and a plateau schedule, which begins with infinity, over an iterable data set."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    falls = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    loader = DataLoader(Stream(), 4)
    run = slipway.resume(model=model, optimizer=optimizer, schedulers=[warm_up, falls], **more)
    for _ in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            warm_up.step()
            seen.extend(numbers.tolist())
        falls.step(loss.item())
    return {"model": model, "optimizer": optimizer, "warm": warm_up, "falls": falls}


def own_state(seen: list[int], **more: Any) -> dict[str, Any]:
    """Data with a state of their own, in an endless loop that `break` ends."""
    model = make_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
    data = Own()
    run = slipway.resume(model=model, optimizer=optimizer, **more)
    for _ in run.epochs(1000):
        for numbers, x, y in run.batches(data):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
        if run.step == 39:
            break
    return {"model": model, "optimizer": optimizer}


def by_steps(seen: list[int], **more: Any) -> dict[str, Any]:
    """Neither epochs nor loader, as nanoGPT has it."""
    model = make_model()
    ddp = wrapped(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(7 + rank)
    run = slipway.resume(model=ddp, optimizer=optimizer, **more)
    run.warm_up(lambda: loss_of(ddp, torch.ones(4, 3), torch.ones(4, 1)))
    for step in run.steps(30):
        numbers = torch.randint(52, (4,)).tolist()
        _, x, y = zip(*map(Numbers().__getitem__, numbers), strict=True)
        loss = loss_of(ddp, torch.stack(x), torch.stack(y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.extend([step, *numbers])
    return {"model": model, "optimizer": optimizer}


def by_boundary(seen: list[int], **more: Any) -> dict[str, Any]:
    """A `while` loop that nobody iterates over."""
    model = make_model()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    run = slipway.resume(model=model, optimizer=optimizer, **more)
    while run.step < 30:
        number = random.randrange(52)
        _, x, y = Numbers()[number]
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        seen.append(number)
        run.boundary()
    run.finish()
    return {"model": model, "optimizer": optimizer}


ALONE: tuple[Loop, ...] = (
    classifier, accumulating, half_precision, gan, plateau, own_state, by_steps, by_boundary,
)  # fmt: skip
LOOPS: dict[str, Loop] = {loop.__name__: loop for loop in (*ALONE, with_workers)}


def main(name: str, results: str, *kill: str) -> None:
    """Run a loop as a process of a job; where `kill` is a rank and a number, it dies before that boundary by SIGKILL."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    if kill and int(kill[0]) == int(os.environ["RANK"]):
        die_before(int(kill[1]))
    for begin in (torch.manual_seed, np.random.seed, random.seed):
        begin(1 + int(os.environ.get("RANK", "0")))
    seen: list[int] = []
    found = LOOPS[name](seen, save_every=SAVE_EVERY, memory_every=1)
    state = {key: value if key == "state" else value.state_dict() for key, value in found.items()}
    torch.save({"seen": seen, **state}, f"{results}-{os.environ.get('RANK', '0')}.pt")


def die_before(number: int) -> None:
    """Have the boundary with that number be this process's end, once all that is to be kept is there."""
    from slipway.train.own.run import ResumableRun

    real, done = ResumableRun.boundary, [0]

    def boundary(run: ResumableRun) -> None:
        real(run)
        run._snapshots.memory.wait_for_room()
        done[0] += 1
        if done[0] == number:
            run._snapshots.memory.wait()
            os.kill(os.getpid(), 9)

    ResumableRun.boundary = boundary  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
