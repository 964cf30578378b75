"""What every collection of labelled pictures offers, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipway.train.loop.task import Batch

Colour = tuple[float, float, float]  # red, green, blue; 0 … 1


@dataclass(frozen=True)
class Pictures:
    """Pictures for training and for evaluation. A batch is (pictures, labels): uint8 (n, size, size, 3), and int64 (n,)."""

    classes: tuple[str, ...]  # names, in the order of the labels
    size: int  # pixels
    mean: Colour
    deviation: Colour  # standard deviation
    count: int  # for training
    train: Callable[[torch.Tensor, torch.Tensor], Batch]  # indices and keys, see Task
    judged: int  # for evaluation
    evaluation: Callable[[torch.Tensor], Batch]
    identity: str  # tells these pictures from others
    on_host: bool = False  # see Task


class Normaliser:
    """Turns pictures into what the models take: each channel with mean 0 and standard deviation 1 over the collection."""

    def __init__(self, mean: Colour, deviation: Colour, size: int, device: torch.device) -> None:
        """For pictures of `size` pixels on `device`."""
        # For a row of pixels, not for one: a loop over three numbers takes five times as long.
        self._mean, self._factor = (
            torch.tensor(colour).repeat(size).to(device)
            for colour in ([255 * part for part in mean], [1 / (255 * part) for part in deviation])
        )

    def __call__(self, batch: Batch) -> Batch:
        """(uint8 (n, size, size, 3), labels) to (float32 (n, 3, size, size) in channels_last, labels)."""
        pictures, labels = batch
        rows = pictures.flatten(2).float().sub_(self._mean).mul_(self._factor)
        return rows.view(pictures.shape).permute(0, 3, 1, 2), labels
