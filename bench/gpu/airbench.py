"""airbench94's way to train on CIFAR-shaped pictures on one GPU, in our own words, for any network.

https://github.com/KellerJordan/cifar10-airbench (airbench94.py): all pictures lie on the GPU in half precision and
channels_last; a whole epoch is moved and mirrored at once, every picture the other way round than in the epoch before; weights
are in half precision but for batch normalisation's; the loss is a sum, by which the learning rate is divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional

from slipway.train.pictures.arrays import Bytes, Colour


class Epochs:
    """Shuffled batches of pictures that lie on the device, varied a whole epoch at a time."""

    def __init__(
        self, pictures: Bytes, labels: Bytes, mean: Colour, deviation: Colour, shift: int, batch: int,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """Send the pictures (n, size, size, 3) there, once, and pad them by what they will be moved."""
        scale, middle = (torch.tensor(colour, device=device).view(1, 3, 1, 1) for colour in (deviation, mean))
        ready = [
            functional.pad((part.permute(0, 3, 1, 2).float() / 255 - middle) / scale, (shift,) * 4, "reflect").to(dtype)
            for part in torch.split(torch.from_numpy(pictures).to(device), 5000)
        ]
        self._padded, self._labels = torch.cat(ready), torch.from_numpy(labels).to(device, torch.int64)
        self._size, self._shift, self._batch, self._device = pictures.shape[1], shift, batch, device
        self._mirrored = torch.rand(len(labels), device=device) < 0.5

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches without end; what is left of an epoch is dropped."""
        while True:
            pictures = self._vary()
            order = torch.randperm(len(pictures), device=self._device)
            for start in range(0, len(order) - self._batch + 1, self._batch):
                chosen = order[start : start + self._batch]
                yield pictures[chosen], self._labels[chosen]

    def _vary(self) -> torch.Tensor:
        count, choices = len(self._padded), 2 * self._shift + 1
        windows = self._padded.unfold(2, self._size, 1).unfold(3, self._size, 1)
        down, right = (torch.randint(choices, (count,), device=self._device) for _ in range(2))
        moved = windows[torch.arange(count, device=self._device), :, down, right]
        self._mirrored = ~self._mirrored
        turned = torch.where(self._mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)
        return turned.contiguous(memory_format=torch.channels_last)


class Airbench:
    """A network that is trained in this way, some steps whenever it is its turn."""

    def __init__(
        self, network: nn.Module, epochs: Epochs, rate: Callable[[int], float], decay: float, smoothing: float,
        half: bool, compiled: bool, device: torch.device,
    ) -> None:  # fmt: skip
        """`rate` is the learning rate of each step. Without `half` weights stay in fp32, under autocast to bf16."""
        self._network = in_half(network) if half and device.type == "cuda" else network
        self._batches, self._rate, self._decay, self._smoothing = iter(epochs), rate, decay, smoothing
        self._half, self._device = half, device
        wide, flat = ([part for part in network.parameters() if (part.ndim > 1) == many] for many in (True, False))
        self._optimizer = torch.optim.SGD([{"params": wide}, {"params": flat}], 1.0, momentum=0.9, nesterov=True)
        if compiled:
            self._network = torch.compile(self._network, mode="max-autotune")  # type: ignore[assignment]
        self._step, self.loss = 0, math.nan

    def take(self, steps: int) -> None:
        """Train; the mean loss is read in the end."""
        total = torch.zeros((), device=self._device)
        for _ in range(steps):
            pictures, labels = next(self._batches)
            rate = self._rate(self._step)
            for group, decay in zip(self._optimizer.param_groups, (self._decay, 0.0), strict=True):
                group["lr"], group["weight_decay"] = rate / len(labels), decay * len(labels)
            with self._arithmetic():
                logits = self._network(pictures)
            loss = functional.cross_entropy(
                logits.float(), labels, label_smoothing=self._smoothing, reduction="sum"
            )  # fmt: skip
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            total += loss.detach() / (len(labels) * steps)
            self._step += 1
        self.loss = total.item()

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self._half or self._device.type != "cuda":
            return nullcontext()
        return torch.autocast("cuda", torch.bfloat16)


def in_half(network: nn.Module) -> nn.Module:
    """The network with weights in half precision, but for those of batch normalisation."""
    network.half()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    return network
