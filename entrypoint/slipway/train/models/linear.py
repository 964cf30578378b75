"""One linear layer that tells two classes apart."""

from __future__ import annotations

import torch
from torch import nn


class Linear(nn.Module):
    """A single score per sample: inputs of shape (batch, input_size) become scores of shape (batch,)."""

    def __init__(self, input_size: int) -> None:
        """Make the layer with torch's own initialisation."""
        super().__init__()
        self.layer = nn.Linear(input_size, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores (logits) of the positive class."""
        scores: torch.Tensor = self.layer(inputs)
        return scores.squeeze(1)
