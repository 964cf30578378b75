"""torchvision's reference training of pictures on one GPU, in our own words (references/classification/train.py).

Its loop reads the loss and two accuracies after every step. `--amp` is autocast to fp16 with a gradient scaler; cuDNN tries its
ways for each shape (cudnn.benchmark), unless it has to be deterministic. Pictures lie ready on the GPU, normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional

from slipway.train.task import Batch


def ready_batches(
    normalise: Callable[[Batch], Batch], pictures: torch.Tensor, labels: torch.Tensor, batch: int, layout: torch.memory_format
) -> list[Batch]:  # fmt: skip
    """Pictures, uint8 (n, size, size, 3) on the device, as normalised batches in this layout."""
    cut = zip(torch.split(pictures, batch), torch.split(labels, batch), strict=True)
    return [(normalise(part)[0].contiguous(memory_format=layout), part[1]) for part in cut]


class Reference:
    """A network that is trained in this way, some steps whenever it is its turn."""

    def __init__(
        self, network: nn.Module, batches: list[Batch], rate: Callable[[int], float], decay: float, smoothing: float,
        precision: torch.dtype | None, device: torch.device,
    ) -> None:  # fmt: skip
        """`rate` is the learning rate of each step; precision None is fp32. As with --norm-weight-decay 0, --opt sgd_nesterov."""
        self._network, self._batches, self._rate = network, batches, rate
        self._criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
        wide, flat = ([part for part in network.parameters() if (part.ndim > 1) == many] for many in (True, False))
        groups = [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
        self._optimizer = torch.optim.SGD(groups, 1.0, momentum=0.9, nesterov=True)
        self._precision, self._device = precision, device
        self._scaler = GradScaler(device.type, enabled=precision == torch.float16)
        self._step, self.loss, self.right = 0, math.nan, 0.0

    def take(self, steps: int) -> None:
        """Train."""
        before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
        losses = [self._one() for _ in range(steps)]
        torch.backends.cudnn.benchmark = before
        self.loss = sum(losses) / steps

    def _one(self) -> float:
        pictures, labels = self._batches[self._step % len(self._batches)]
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._step)
        with torch.autocast(self._device.type, self._precision) if self._precision else nullcontext():
            logits = self._network(pictures)
            loss = self._criterion(logits, labels)
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._step += 1
        found = functional.softmax(logits.detach().float(), 1).topk(5, 1).indices == labels.unsqueeze(1)
        self.right = found[:, :1].float().sum().item() + found.float().sum().item()
        return float(loss.item())
