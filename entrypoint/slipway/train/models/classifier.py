"""A trained network for pictures with everything needed to use it, which the Hub's library stores and loads.

Classifier.from_pretrained("my-model")(pictures).argmax(1)

It is a module of its own because a training does not need huggingface_hub, which takes time to import.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from slipway.train.models.cnn import build


class Classifier(nn.Module, PyTorchModelHubMixin):
    """Pictures (n, 3, height, width), uint8 from 0 to 255 or float from 0 to 1, become logits (n, classes).

    The classifier normalises the pictures itself. `names[i]` is the name of class i.
    """

    def __init__(
        self, model: str, names: Sequence[str], size: int, mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        """`model` and `size` as for `build`; `mean` and `deviation` are those of the channels, from 0 to 1."""
        super().__init__()
        self.names = list(names)
        self.size = size
        self.network = build(model, len(self.names), size)
        self.mean, self.deviation = list(mean), list(deviation)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return logits of pictures of any size that the network takes; it was trained on `size`."""
        if pictures.dtype == torch.uint8:
            pictures = pictures / 255
        mean, deviation = (pictures.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.deviation))
        logits: torch.Tensor = self.network((pictures - mean) / deviation)
        return logits
