"""The way in which PyTorch's tutorials train on pictures: a data set of arrays, PIL, torchvision's transforms, DataLoader.

What PyTorch's and torchvision's documents teach, in our own words: one picture at a time, channels first, fp32, and SGD
without fused=True. With workers the DataLoader keeps them from epoch to epoch, which is its own best option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from slipway.train.pictures.arrays import Bytes, Colour
from slipway.train.task import Batch

PREFETCHED = 2  # batches of each worker, by default


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Arrays in memory, of which each picture becomes one of PIL's and is transformed, as torchvision's CIFAR10 does it."""

    def __init__(
        self, pictures: Bytes, labels: Sequence[int], transform: Callable[[Image.Image], torch.Tensor]
    ) -> None:
        """`pictures` has the shape (n, size, size, 3)."""
        self._pictures, self._labels, self._transform = pictures, labels, transform

    def __len__(self) -> int:
        """How many there are."""
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """A picture, channels first, and its label."""
        return self._transform(Image.fromarray(self._pictures[index])), self._labels[index]


def transform(mean: Colour, deviation: Colour, size: int = 0, shift: int = 0) -> Callable[[Image.Image], torch.Tensor]:
    """What becomes of each picture; with a `size` it is cropped at random and every other is mirrored, as for training."""
    varied = [transforms.RandomCrop(size, padding=shift), transforms.RandomHorizontalFlip()] if size else []
    return transforms.Compose([*varied, transforms.ToTensor(), transforms.Normalize(mean, deviation)])  # type: ignore[no-any-return]


class Batches:
    """Shuffled batches of a data set, epoch after epoch."""

    def __init__(self, pictures: Pictures, size: int, workers: int) -> None:
        """Start the workers, if any: before anything in this process starts threads."""
        self._loader = DataLoader(
            pictures, size, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=True
        )
        self._batches = iter(self._loader)

    def __next__(self) -> Batch:
        """(float (n, 3, size, size), labels)."""
        try:
            pictures, labels = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            pictures, labels = next(self._batches)
        return pictures, labels


class Tutorial:
    """A network that is trained in this way, some steps whenever it is its turn."""

    def __init__(
        self, network: nn.Module, batches: Batches, rate: Callable[[int], float], decay: float, smoothing: float
    ) -> None:
        """`rate` is the learning rate of each step; weights of more than one dimension decay."""
        self.network, self._batches = network, batches
        wide, flat = ([part for part in network.parameters() if (part.ndim > 1) == many] for many in (True, False))
        groups = [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
        self._optimizer = torch.optim.SGD(groups, 1.0, momentum=0.9, nesterov=True)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, rate)
        self._criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
        self.lost = 0.0  # sum over all steps

    def take(self, steps: int) -> None:
        """Train for so many steps."""
        for _ in range(steps):
            pictures, labels = next(self._batches)
            self._optimizer.zero_grad()
            loss = self._criterion(self.network(pictures), labels)
            loss.backward()
            self._optimizer.step()
            self._schedule.step()
            self.lost += loss.item()


@torch.no_grad()
def judge(network: nn.Module, pictures: Pictures) -> dict[str, float]:
    """Mean cross entropy, and the share of right answers."""
    network.eval()
    lost = right = 0.0
    for batch, labels in DataLoader(pictures, 500):
        logits = network(batch)
        lost += float(functional.cross_entropy(logits, labels, reduction="sum"))
        right += int((logits.argmax(1) == labels).sum())
    return {"val_loss": lost / len(pictures), "accuracy": right / len(pictures)}
