"""Training loops as users write them, each with the lines of `slipway.resume`. `seen` gets the number of each sample trained on.

As a program: `own_loops.py LOOP RESULTS KILLS SEED`. Where KILLS is more than the attempts before, a process dies by SIGKILL at
a moment that the seed and the attempt choose. With `stop STEP` in their place, each process waits after that step, which it prints,
until its launcher asks for a stop; its DistributedDataParallel objects then live until the interpreter has ended.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)
from waiting import wait_until

import slipway
from slipway.protocol.files import STOP_FILE
from slipway.train.user.run import ResumableRun

Loop = Callable[..., dict[str, Any]]
SAVE_EVERY = 7  # steps between two snapshots on the disk, in a job of several processes


class Seen(list[int]):
    """The numbers of the samples that this attempt trained on. It knows how many there were before, which is part of the snapshots,
    and writes each with its place among all of them to a `file`.
    """

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.before, self.file = 0, file

    def extend(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self.file:
                with self.file.open("a") as file:
                    file.write(f"{self.before + len(self)} {number}\n")
            self.append(number)

    def state_dict(self) -> dict[str, int]:
        return {"count": self.before + len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.before = state["count"]


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


def wrapped(model: nn.Module, **more: Any) -> nn.Module:
    """In DistributedDataParallel where there are several processes."""
    return DistributedDataParallel(model, **more) if dist.is_initialized() else model


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(x), y)


def sampler_for(data: Dataset[Any]) -> Any:
    """What divides the samples among the processes."""
    return DistributedSampler(data, seed=5) if dist.is_initialized() else RandomSampler(data)  # type: ignore[arg-type]


def classifier(seen: Seen, **more: Any) -> dict[str, Any]:
    """Epochs with augmentation, a schedule by epoch, a validation loader; BatchNorm and values of the user's differ by rank."""
    model = make_model(nn.BatchNorm1d(8))
    ddp = wrapped(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    data = Numbers(augmented=True)
    loader = DataLoader(data, 4, sampler=sampler_for(data), drop_last=True)
    run = slipway.resume(model=ddp, optimizer=optimizer, scheduler=scheduler, seen=seen, **more)
    run.warm_up(lambda: loss_of(ddp, torch.ones(4, 3), torch.ones(4, 1)))
    for epoch in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = loss_of(ddp, x, y)
            loss.backward()
            optimizer.step()
            seen.extend(numbers.tolist())
            run.log(loss=loss.item())
            run.state["running"] = 0.9 * run.state.get("running", 0.0) + loss.item()
        scheduler.step()
        run.state.setdefault("best", []).append((epoch, scheduler.get_last_lr()[0]))
        model.eval()
        with torch.no_grad():
            run.log(val_loss=sum(loss_of(model, x, y).item() for _, x, y in DataLoader(Numbers(8), 4)))
        model.train()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "state": run.state}


def with_workers(seen: Seen, **more: Any) -> dict[str, Any]:
    """Augmentation in persistent worker processes, seeded sample by sample."""
    model = wrapped(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Numbers(augmented=True)
    loader = DataLoader(data, 4, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=mixed)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader, exact_augmentation=True):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer}


def accumulating(seen: Seen, **more: Any) -> dict[str, Any]:
    """Gradient accumulation over two micro-batches in bfloat16, and a mean of the weights that is a model as well."""
    model = make_model()
    ddp = wrapped(model)
    ema = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, new, _: 0.9 * mean + 0.1 * new)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(8))
    run = slipway.resume(model=model, optimizer=optimizer, ema=ema, seen=seen, **more)
    for _ in run.epochs(2):
        for number, (numbers, x, y) in run.enumerate(loader):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(ddp, x, y) / 2
            loss.backward()
            seen.extend(numbers.tolist())
            if run.state.setdefault("micro", 0) % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=number % 3 == 0)
                ema.update_parameters(model)
            run.state["micro"] += 1
    return {"model": model, "optimizer": optimizer, "ema": ema}


def tails(seen: Seen, **more: Any) -> dict[str, Any]:
    """Two loaders, the shorter one repeated; accumulation with a tail; and a limit of batches per epoch."""
    model = wrapped(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    short, long = (DataLoader(Numbers(size), 4, sampler=sampler_for(Numbers(size))) for size in (16, 52))
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    last = min(len(long), 11) - 1
    for epoch in run.epochs(3):
        for loader in (short, long):
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
        for number, ((_, x, y), (numbers, *_)) in run.enumerate(zip(cycle(short), long, strict=False)):
            loss_of(model, x, y).backward()
            seen.extend(numbers.tolist())
            if number % 2 or number == last:
                optimizer.step()
                optimizer.zero_grad()
            if run.batch == last:
                break
    return {"model": model, "optimizer": optimizer}


def half_precision(seen: Seen, **more: Any) -> dict[str, Any]:
    """float16 with a gradient scaler, whose first steps are left out."""
    model = wrapped(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=4)
    loader = DataLoader(Numbers(), 4, shuffle=True)
    run = slipway.resume(model=model, optimizer=optimizer, scaler=scaler, seen=seen, **more)
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


def gan(seen: Seen, **more: Any) -> dict[str, Any]:
    """Two models and two optimizers; the second loss leaves gradients in the first model."""
    first, second = wrapped(make_model()), wrapped(nn.Linear(1, 3))
    one = torch.optim.Adam(first.parameters(), lr=0.01)
    two = torch.optim.Adam(second.parameters(), lr=0.01)
    sampler = WeightedRandomSampler(torch.arange(1.0, 53.0).tolist(), 52)
    loader = DataLoader(Numbers(), 4, sampler=sampler)
    run = slipway.resume(model={"d": first, "g": second}, optimizer=[one, two], seen=seen, **more)
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


def plateau(seen: Seen, **more: Any) -> dict[str, Any]:
    """A warm-up and a plateau schedule, which begins with infinity, over an iterable data set."""
    model = wrapped(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    falls = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    loader = DataLoader(Stream(), 4)
    run = slipway.resume(model=model, optimizer=optimizer, schedulers=[warm_up, falls], seen=seen, **more)
    for _ in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            warm_up.step()
            seen.extend(numbers.tolist())
            run.state["loss"] = loss.item()
        falls.step(run.state["loss"])  # a resumed epoch may have no batches left
    return {"model": model, "optimizer": optimizer, "warm": warm_up, "falls": falls}


def own_state(seen: Seen, **more: Any) -> dict[str, Any]:
    """Data with a state of their own, as torchdata's StatefulDataLoader, in an endless loop that `break` ends."""
    model = wrapped(make_model())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001)
    data = Own()
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(1000):
        for numbers, x, y in run.batches(data):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
        if run.step == 39:
            break
    return {"model": model, "optimizer": optimizer}


def by_steps(seen: Seen, **more: Any) -> dict[str, Any]:
    """Neither epochs nor loader, as nanoGPT has it."""
    model = make_model()
    ddp = wrapped(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(7 + rank)
    run = slipway.resume(model=ddp, optimizer=optimizer, seen=seen, **more)
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


def by_boundary(seen: Seen, **more: Any) -> dict[str, Any]:
    """A `while` loop that nobody iterates over."""
    model = wrapped(make_model())
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    while run.step < 30:
        number = random.randrange(52)
        _, x, y = Numbers()[number]
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        seen.extend([number])
        run.boundary()
    run.finish()
    return {"model": model, "optimizer": optimizer}


def averaged(seen: Seen, **more: Any) -> dict[str, Any]:
    """Stochastic weight averaging: a second model, and a schedule that takes over from another one."""
    model = make_model(nn.BatchNorm1d(8))
    ddp, mean = wrapped(model), torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    falls = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    stays = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    loader = DataLoader(Numbers(), 4, sampler=sampler_for(Numbers()))
    run = slipway.resume(model=ddp, optimizer=optimizer, schedulers=[falls, stays], mean=mean, seen=seen, **more)
    for epoch in run.epochs(4):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss_of(ddp, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
        if epoch > 1:
            mean.update_parameters(model)
            stays.step()
        else:
            falls.step()
    torch.optim.swa_utils.update_bn(([x, y] for _, x, y in DataLoader(Numbers(), 4)), mean)
    return {"model": model, "optimizer": optimizer, "mean": mean, "falls": falls, "stays": stays}


class Branches(nn.Module):
    """A model of which each step uses only a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.branches = nn.ModuleList([nn.Linear(3, 1) for _ in range(3)])

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        found: torch.Tensor = self.branches[branch](x)
        return found


def with_unused(seen: Seen, **more: Any) -> dict[str, Any]:
    """Parameters without a gradient, and plain values that the next step depends on."""
    model = Branches()
    ddp = wrapped(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, sampler=sampler_for(Numbers()))
    run = slipway.resume(model=ddp, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            branch = run.state.get("branch", 0)
            optimizer.zero_grad()
            functional.mse_loss(ddp(x, branch), y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
            run.state["branch"] = (branch + 1) % 3
            run.state.setdefault("counts", {}).setdefault(branch, []).append(run.step)
    return {"model": model, "optimizer": optimizer, "state": run.state}


def compiled(seen: Seen, **more: Any) -> dict[str, Any]:
    """A compiled model around DistributedDataParallel."""
    model = make_model()
    fast = torch.compile(wrapped(model), backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, sampler=sampler_for(Numbers()), drop_last=True)
    run = slipway.resume(model=fast, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(3):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss_of(fast, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
            run.log(number=run.step)
    return {"model": model, "optimizer": optimizer}


class Shuffled(Sampler[int]):
    """An order of its own, from a generator that is not seeded again in each epoch."""

    def __init__(self, size: int, dice: Any) -> None:
        self.size, self.dice = size, dice

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        self.dice.shuffle(order)
        yield from order


def mixed(samples: list[tuple[int, torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a batch, and mix it, as mixup does."""
    numbers, x, y = torch.utils.data.default_collate(samples)
    share = torch.rand(1) * random.random()
    return numbers, share * x + (1 - share) * x.flip(0), y


def drawing(seen: Seen, **more: Any) -> dict[str, Any]:
    """Draws everywhere: a split after `resume`, subsets in each epoch before its loaders and between them, samplers of its own."""
    model = wrapped(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    kept = Subset(Numbers(), np.random.permutation(random.sample(range(52), 40)).tolist())
    batches = BatchSampler(Shuffled(40, np.random.default_rng(4)), 5, drop_last=False)
    own = DataLoader(kept, batch_sampler=batches, collate_fn=mixed)
    for _ in run.epochs(2):
        for loader in (None, own):
            part = Subset(kept, torch.randperm(40)[:20].tolist())
            for numbers, x, y in run.batches(loader or DataLoader(part, 4, collate_fn=mixed), exact_augmentation=True):
                optimizer.zero_grad()
                loss_of(model, x, y + len(part)).backward()
                optimizer.step()
                seen.extend([*numbers.tolist(), part.indices[0]])  # type: ignore[index]
    return {"model": model, "optimizer": optimizer}


def sharded(seen: Seen, **more: Any) -> dict[str, Any]:
    """Parameters and optimizer state that are spread over all ranks, unevenly, and an average of them."""
    return train_sharded(seen, None, **more)


def hybrid(seen: Seen, **more: Any) -> dict[str, Any]:
    """The same within each half of the ranks: there are two replicas."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return train_sharded(seen, mesh, **more)


def train_sharded(seen: Seen, mesh: Any, **more: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, 1))
    for layer in (*model, model):
        if isinstance(layer, nn.Linear | nn.Sequential):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    falls = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    loader = DataLoader(Numbers(augmented=True), 2, sampler=sampler_for(Numbers()), drop_last=True)
    run = slipway.resume(model=model, optimizer=optimizer, scheduler=falls, seen=seen, **more)
    for _ in run.epochs(5):
        for number, (numbers, x, y) in run.enumerate(loader):
            loss = loss_of(model, x, y)
            (loss / 2).backward()
            seen.extend(numbers.tolist())
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss.item())
        falls.step()
    return {"model": model, "optimizer": optimizer, "falls": falls}


def lbfgs(seen: Seen, **more: Any) -> dict[str, Any]:
    """An optimizer that calls for several losses in a step."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
    x, y = (torch.stack(each) for each in list(zip(*map(Numbers().__getitem__, range(52)), strict=True))[1:])
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return loss.item()

    for number in run.steps(28):
        run.log(loss=optimizer.step(closure))
        seen.extend([number])
    return {"model": model, "optimizer": optimizer}


def skipping(seen: Seen, **more: Any) -> dict[str, Any]:
    """Clipped gradients; a step is left out if they are far larger than before."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, shuffle=True)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader):
            loss_of(model, x, y).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            if norm < 1.2 * run.state.get("norm", norm + 1):
                optimizer.step()
                run.state["norm"] = norm
            optimizer.zero_grad()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer, "state": run.state}


def distilled(seen: Seen, **more: Any) -> dict[str, Any]:
    """A frozen teacher, made alike in each start and not passed."""
    model, teacher = make_model(), make_model(nn.Linear(8, 8)).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Numbers(), 4, shuffle=True)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            (loss_of(model, x, y) + loss_of(model, x, teacher(x))).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer}


class Shard(Stream):
    """A rank's part of a stream, in another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        order = random.Random(self.epoch).sample(range(52), 52)
        yield from map(Numbers().__getitem__, order[rank::ranks])


def streamed(seen: Seen, **more: Any) -> dict[str, Any]:
    """A stream that each rank reads a part of."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Shard(), 4)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    for _ in run.epochs(2):
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
    return {"model": model, "optimizer": optimizer}


class Trainer:
    """A loop in the methods of a class."""

    def __init__(self, seen: Seen, **more: Any) -> None:
        self.model, self.seen = make_model(), seen
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.run = slipway.resume(model=self.model, optimizer=self.optimizer, seen=seen, **more)

    def fit(self, loader: DataLoader[Any]) -> None:
        for _ in self.run.epochs(2):
            self.model.train()
            for batch in self.run.batches(loader):
                self.training_step(*batch)
            self.run.state["best"] = min(self.validate(), self.run.state.get("best", 9.0))

    def training_step(self, numbers: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss_of(self.model, x, y).backward()
        self.optimizer.step()
        self.seen.extend(numbers.tolist())

    @torch.no_grad()
    def validate(self) -> float:
        return loss_of(self.model.eval(), torch.ones(4, 3), torch.ones(4, 1)).item()


def as_trainer(seen: Seen, **more: Any) -> dict[str, Any]:
    """`Trainer(…).fit(loader)`, as in PyTorch Lightning, with a validation after each epoch."""
    trainer = Trainer(seen, **more)
    trainer.fit(DataLoader(Numbers(), 4, shuffle=True))
    return {"model": trainer.model, "optimizer": trainer.optimizer, "state": trainer.run.state}


def beginning(seen: Seen, **more: Any) -> dict[str, Any]:
    """Each epoch begins with changes of what is saved: a learning rate, a schedule, a target network, weights, counters, a draw."""
    model, target = make_model(), make_model()
    optimizer = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[2:].parameters()}], lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    dice, rng, torchs = random.Random(2), np.random.default_rng(3), torch.Generator().manual_seed(4)
    generators: dict[str, Any] = {"dice": dice, "rng": rng, "torchs": torchs}
    run = slipway.resume(
        model=model, target=target, optimizer=optimizer, scheduler=scheduler, seen=seen, **generators, **more
    )
    history = run.state.setdefault("history", [])
    for epoch in run.epochs(4):
        history.append(epoch)
        run.state["scale"] = 0.5 * run.state.get("scale", 1.0)
        if epoch:
            scheduler.step()
        optimizer.param_groups[1]["lr"] *= 0.5
        target.load_state_dict(model.state_dict())
        if epoch == 2:
            with torch.no_grad():
                model[0].weight.mul_(0.5)
            optimizer.state.pop(model[0].weight)
        order = [*dice.sample(range(26), 8), *rng.permutation(26)[:8].tolist()]
        order += torch.randperm(52, generator=torchs)[:20].tolist()
        for part in (order[:16], order[16:]):
            for numbers, x, y in run.batches(DataLoader(Subset(Numbers(), part), 4)):
                loss = loss_of(model, x, y) + (model(x) - target(x).detach()).pow(2).mean()
                optimizer.zero_grad()
                (loss * run.state["scale"]).backward()
                optimizer.step()
                history.append(loss.item())
                seen.extend(numbers.tolist())
            run.state["parts"] = run.state.get("parts", 0) + 1
    return {"model": model, "target": target, "optimizer": optimizer, "scheduler": scheduler, "state": run.state}


class Annealed(nn.Module):
    """A model with a temperature that it lowers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.temperature, self.calls = make_model(), 2.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.temperature *= 0.9
        return self.body(x) / self.temperature  # type: ignore[no-any-return]


def annealing(seen: Seen, **more: Any) -> dict[str, Any]:
    """What no state has: a temperature, a dropout that is set in some epoch, a layer that is thawed there."""
    model = Annealed()
    model.body[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Numbers(), 4, shuffle=True)
    run = slipway.resume(model=model, optimizer=optimizer, seen=seen, **more)
    run.warm_up(lambda: loss_of(model, torch.ones(4, 3), torch.ones(4, 1)))
    for epoch in run.epochs(3):
        model.temperature *= 1.5
        if epoch == 1:
            model.body[0].requires_grad_(True)
            model.body[2].p = 0.5
        for numbers, x, y in run.batches(loader):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            seen.extend(numbers.tolist())
    run.state["calls"] = model.calls
    return {"model": model, "optimizer": optimizer, "state": run.state}


PATTERNS: tuple[Loop, ...] = (lbfgs, skipping, distilled, streamed, as_trainer, beginning, annealing)  # of one process
ALONE: tuple[Loop, ...] = (
    classifier, accumulating, tails, half_precision, gan, plateau, own_state, averaged, with_unused, compiled, by_steps,
    by_boundary, drawing,
)  # fmt: skip
TOGETHER: tuple[Loop, ...] = (*ALONE, with_workers, sharded, hybrid)
LOOPS: dict[str, Loop] = {loop.__name__: loop for loop in TOGETHER}


def main(name: str, results: str, *kill: str) -> None:
    """Run a loop as a process of a job; where `kill` is a rank and a number, it dies before that boundary by SIGKILL."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    if kill:
        die_at(int(kill[1]), int((*kill, "0")[2]), dies=int(kill[0]) == rank)
    for begin in (torch.manual_seed, np.random.seed, random.seed):
        begin(1 + rank)
    seen = Seen(Path(f"{results}-{rank}.seen"))
    found = LOOPS[name](seen, save_every=SAVE_EVERY, memory_every=1)
    state = {key: value if key == "state" else value.state_dict() for key, value in found.items()}
    torch.save(plain({"seen": [*seen], **state}), f"{results}-{rank}.pt")


def plain(value: Any) -> Any:
    """The same with each tensor's part on this rank."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value.to_local() if hasattr(value, "to_local") else value


def die_at(number: int, calls: int, *, dies: bool) -> None:
    """Have memory for snapshots be there after each boundary, and this process end after so many and so many calls of functions."""
    real, done, process = ResumableRun.boundary, [0], os.getpid()

    def count(frame: FrameType, event: str, what: Any) -> None:
        done[0] += 1
        if done[0] > number + calls and os.getpid() == process:
            os.kill(os.getpid(), 9)

    def boundary(run: ResumableRun) -> None:
        real(run)
        if done[0] < number:
            run._snapshots.memory.wait_for_room()
            done[0] += 1
            if done[0] == number and not calls:
                run._snapshots.memory.wait()
                run._snapshots.writer.wait()
                run._context.wait_for_all()
            if done[0] == number and dies:
                sys.setprofile(count)

    ResumableRun.boundary = boundary  # type: ignore[method-assign]


LIVE: list[DistributedDataParallel] = []  # until the interpreter has ended


def hold_at(step: int) -> None:
    """Have each process print that step at its boundary, and go on when the launcher has asked for a stop."""
    real, flag = ResumableRun.boundary, Path(os.environ["SLIPWAY_NODE_DIR"], STOP_FILE)

    def boundary(run: ResumableRun) -> None:
        real(run)
        if run.step == step and not LIVE:
            LIVE.extend(each for each in gc.get_objects() if isinstance(each, DistributedDataParallel))
            print(f"rank {os.environ['RANK']} is at step {step}", flush=True)
            wait_until(flag.exists, "the request to stop")

    ResumableRun.boundary = boundary  # type: ignore[assignment,method-assign]


def choose_death(loop: str, kills: int, seed: int) -> tuple[str, ...]:
    """Which rank dies in this attempt, and when; nobody after so many kills. The number of each attempt is written down."""
    attempt = int(os.environ["SLIPWAY_ATTEMPT"])
    dice = random.Random(f"{seed} {attempt}")
    if attempt > kills:
        return ()
    # A snapshot in memory is there after three steps, which take as many boundaries, or twice as many where some make no step.
    least = 6 if loop in ("accumulating", "tails", "half_precision", "sharded", "hybrid") else 3
    boundary = dice.randrange(least, least + 3)
    return str(dice.randrange(int(os.environ["WORLD_SIZE"]))), str(boundary), str(dice.randrange(1, 600))


if __name__ == "__main__":
    loop, folder, times, moment = sys.argv[1:]
    if times == "stop":
        hold_at(int(moment))
        main(loop, folder)
    else:
        main(loop, folder, *choose_death(loop, int(times), int(moment)))
