"""The first step of a training, taken apart.

After many steps two trainings that round differently have little to do with each other: every step enlarges what lies between
them, so that no bound on their losses follows from anything. What one step does can be said exactly, or to a rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from loops import Loop

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    """What the first step saw and did."""

    loss: float
    gradients: Tensors  # as the optimizer got them
    weights: Tensors  # after it


def first_step(loop: Loop) -> Step:
    """Take a training's first step; it has `--log-every 1`."""
    training = loop.training
    gradients: dict[str, torch.Tensor] = {}

    def keep(*given: object) -> None:
        gradients.update(
            {name: part.grad.clone() for name, part in training.parameters.items() if part.grad is not None}
        )

    training.task.optimizer.register_step_pre_hook(keep)
    loop.take(1)
    assert gradients.keys() == training.parameters.keys()
    return Step(loop.loss, gradients, copied(training.parameters))


def optimized(loop: Loop, gradients: Tensors) -> Tensors:
    """The weights that the optimizer makes of `gradients` in the first step, in a training that has not begun."""
    training = loop.training
    for group in training.task.optimizer.param_groups:
        group["lr"] = loop.rate(0)
    for name, parameter in training.parameters.items():
        parameter.grad = gradients[name].clone()
    training.task.optimizer.step()
    return copied(training.parameters)


def copied(tensors: Tensors) -> Tensors:
    """Copies that stay as they are."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
