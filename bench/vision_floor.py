"""What no training of a network on pictures can do without: forward and backward of the network on a batch at hand, those
of its convolutions, and plain matrix products of as many operations."""  # fmt: skip

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from turns import Take

from slipway.train.loop.arithmetic import Precision
from slipway.train.models.cnn import flops_per_picture

TUTORIALS, OURS, CONVOLUTIONS, PRODUCTS = (
    "the tutorial's network alone", "slipway's network alone", "its convolutions alone", "their operations as matrix products",
)  # fmt: skip
SIDE = 512  # of the matrices


def make_floors(network: nn.Module, precision: Precision, batch: int, size: int) -> dict[str, Take]:
    """Each of them, for a batch of so many pictures of `size` pixels; the `network` itself stays as it is."""
    pictures = torch.randn(batch, 3, size, size)
    first = copy.deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    last, laid = copy.deepcopy(network), pictures.to(memory_format=torch.channels_last)
    return {
        TUTORIALS: whole(first, pictures, Precision("fp32", "cpu")),
        OURS: whole(last, laid, precision),
        CONVOLUTIONS: convolutions(last, laid, precision),
        PRODUCTS: products(flops_per_picture(network, size) * batch, precision),
    }


def whole(network: nn.Module, pictures: torch.Tensor, precision: Precision) -> Take:
    """Forward and backward, with a loss."""
    labels = torch.arange(len(pictures)) % 10

    def once() -> None:
        with precision.autocast():
            loss = functional.cross_entropy(network(pictures).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        network.zero_grad()

    return repeat(once)


def convolutions(network: nn.Module, pictures: torch.Tensor, precision: Precision) -> Take:
    """The same of the convolutions, each with what it gets in the network; nobody asks for the pictures' own gradient."""
    met: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        part.register_forward_pre_hook(lambda part, given: met.append((part, given[0].detach())))
        for part in network.modules()
        if isinstance(part, nn.Conv2d)
    ]
    with precision.autocast():
        network(pictures)
        for hook in hooks:
            hook.remove()
        gradients = [torch.randn_like(part(given)) for part, given in met]
    wanted = [[*part.parameters(), *([given.requires_grad_()] if at else [])] for at, (part, given) in enumerate(met)]

    def once() -> None:
        for (part, given), gradient, asked in zip(met, gradients, wanted, strict=True):
            with precision.autocast():
                made = part(given)
            torch.autograd.grad(made, asked, gradient)

    return repeat(once)


def products(flops: float, precision: Precision) -> Take:
    """As many floating-point operations, to the nearest whole number of products."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision.name]
    one, other = torch.randn(2, SIDE, SIDE).to(dtype)
    number = max(1, round(flops / (2 * SIDE**3)))

    def once() -> None:
        for _ in range(number):
            torch.mm(one, other)

    return repeat(once)


def repeat(call: Callable[[], None]) -> Take:
    """So many calls."""

    def take(steps: int) -> None:
        for _ in range(steps):
            call()

    return take
