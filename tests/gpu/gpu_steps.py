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


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two tensors lie apart, as a share of the other's length."""
    return float((one.double() - other.double()).norm() / other.double().norm())


# How far gradients in fp32 lie apart at most that are computed in other orders, as a share (`distance`). A sum of n terms, in
# any order, is off by at most n × eps / 2 of what the terms' absolute values sum up to (Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd edition, section 4.2). Here n is at most 2048 (16 × 128 tokens, for the gradient of a weight), and
# some 32 such sums follow one another, through two layers and back. Roundings have both signs, of which the bound knows nothing:
# with that as little as √n of it remains, and there is room for sums that cancel. A doubled gradient lies 1 apart.
REORDERED = 32 * 2048 * torch.finfo(torch.float32).eps / 2  # 0.004
