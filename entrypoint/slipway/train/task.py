"""What a workload describes, for the loop to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Validation:
    """How a model is judged. Every sample counts once, whatever the number of processes."""

    samples: int
    batch_size: int  # per process; nothing but memory and speed depend on it
    batch: Callable[[torch.Tensor], Batch]
    # (model, batch) -> sums over the batch, float64, shape (k,); the last one is what the others are divided by
    sums: Callable[[nn.Module, Batch], torch.Tensor]
    # the k - 1 means -> named results; `val_loss` is among them
    results: Callable[[list[float]], dict[str, float]]


@dataclass(frozen=True)
class Task:
    """What a workload trains. Sample indices arrive as int64 tensors of shape (n,) on the context's device.

    `batch` also gets a random int64 for each sample (shape (n,)), which depends on seed, epoch and sample alone: the one
    source of randomness for augmentation. It may run in several threads at once.
    """

    name: str
    model: nn.Module  # the same on all ranks, already on the context's device
    description: Mapping[str, Any]  # JSON values that tell this model from others; kept in snapshots
    samples: int  # in an epoch
    batch: Callable[[torch.Tensor, torch.Tensor], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]  # mean over the batch
    optimizer: torch.optim.Optimizer  # with fused=True: it can leave out a step without the host
    validation: Validation
    data: str = ""  # which data, so that a resumed run can tell whether they are still the same
    unit: str = "samples"  # of throughput
    units_per_sample: int = 1
    flops_per_unit: float = 0.0  # floating-point operations of forward and backward; 0 where nobody counted them
    sample: Callable[[], str] | None = None  # a text that the model writes, at each evaluation; on rank 0
    pictures: Callable[[], Mapping[str, torch.Tensor]] | None = None  # uint8 (3, height, width) by name, likewise
