"""The training of examples/own_task.py, in which every step takes PACE seconds: it lasts, but leaves the machine to others."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import own_task

from slipway.train import Batch, open_context

PACE = float(os.environ.get("PACE", "0"))
unhurried = own_task.loss


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    time.sleep(PACE)
    return unhurried(model, batch)


if __name__ == "__main__":
    own_task.loss = loss
    with open_context() as context:
        own_task.train(context)
