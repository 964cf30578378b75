"""A training of your own on Slipway's loop: a small network learns to tell two spirals apart.

slipway examples/own_task.py --turns 3                          # on every GPU, without any in two CPU processes
slipway run --resume auto examples/own_task.py --steps 2000     # train on from the newest snapshot

`fit` brings snapshots, resume, the stop flag, evaluation, metrics and progress; this file says what is trained.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import click
import torch
from torch import nn
from torch.nn import functional

from slipway.train import Batch, Common, Context, Task, Validation, fit, open_context, option, parse


@dataclass(frozen=True, kw_only=True)
class SpiralOptions(Common):
    """Learn to tell two spirals apart."""

    workload: ClassVar[str] = "own_task.py"
    presets: ClassVar = {"": {"steps": 1000, "batch_size": 64, "lr": 0.01, "save_every": 500, "log_every": 100}}
    turns: float = option(2.0, click.FloatRange(0.5, 5), "Turns of each spiral.")
    width: int = option(64, click.IntRange(min=2), "Neurons of each hidden layer.")


def make_points(count: int, turns: float, seed: int) -> Batch:
    """Points in the plane, (count, 2), and for each the number of its spiral, (count,); the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    radius, spiral = torch.rand(count, generator=generator).sqrt(), torch.arange(count) % 2
    angle = torch.pi * (2 * turns * radius + spiral)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), spiral.float()


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean over the batch, as the loop wants it."""
    return functional.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])


def sums(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Sums over the batch: loss, right answers, points. Over all processes they are divided by the last one."""
    scores, spirals = model(batch[0]).squeeze(1), batch[1]
    lost = functional.binary_cross_entropy_with_logits(scores, spirals, reduction="sum")
    right = ((scores > 0) == (spirals > 0.5)).sum()
    return torch.stack([lost, right, torch.tensor(len(spirals), device=lost.device)]).double()


def make_task(options: SpiralOptions, context: Context) -> Task:
    """What `fit` needs to know: model, data, loss, optimizer, and how the model is judged."""
    torch.manual_seed(options.seed)  # the same weights on all ranks
    layers = [nn.Linear(2, options.width), nn.Tanh(), nn.Linear(options.width, options.width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(options.width, 1)).to(context.device)
    points, spirals = (part.to(context.device) for part in make_points(5000, options.turns, options.seed))
    return Task(
        name="spirals", model=model, description={"width": options.width}, loss=loss,
        samples=4000, batch=lambda indices, keys: (points[indices], spirals[indices]),
        optimizer=torch.optim.AdamW(model.parameters(), options.lr, fused=True),
        validation=Validation(
            samples=1000, batch_size=500, batch=lambda indices: (points[4000 + indices], spirals[4000 + indices]),
            sums=sums, results=lambda means: {"val_loss": means[0], "accuracy": means[1]},
        ),
        data=f"spirals of {options.turns} turns, seed {options.seed}",
    )  # fmt: skip


def train(context: Context) -> None:
    """Read the command line and train; the model lives in here, so that it is gone before the processes part."""
    options = parse(SpiralOptions, sys.argv[1:])
    result = fit(make_task(options, context), options, context)
    context.say(f"{result.outcome} at step {result.step}; all of it lies in {context.place.run_dir}")


if __name__ == "__main__":
    with open_context() as context:
        train(context)
