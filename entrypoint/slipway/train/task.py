"""What a workload describes, for the loop to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Batch = tuple[torch.Tensor, ...]
Summed = tuple[torch.Tensor, torch.Tensor]


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and afterwards back into the mode that it had."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class Task:
    """What a workload trains. Sample indices arrive as int64 tensors of shape (n,) on the context's device.

    `batch` also gets a random int64 for each sample (shape (n,)), which depends on seed, epoch and sample alone: the one
    source of randomness for augmentation. It may run in several threads at once.
    """

    name: str
    model: nn.Module  # the same on all ranks (of a split model: this rank's stage), already on the context's device
    description: Mapping[str, Any]  # JSON values that tell this model from others; kept in snapshots
    samples: int  # in an epoch
    batch: Callable[[torch.Tensor, torch.Tensor], Batch]
    # Mean over the batch; or (sum, count), of which training takes the mean over all parts and processes of a step
    loss: Callable[[nn.Module, Batch], torch.Tensor | Summed]
    optimizer: torch.optim.Optimizer  # with fused=True: it can leave out a step without the host
    validation: Validation
    data: str = ""  # which data, so that a resumed run can tell whether they are still the same
    unit: str = "samples"  # of throughput
    units_per_sample: int = 1
    flops_per_unit: float = 0.0  # floating-point operations of forward and backward; 0 where nobody counted them
    split: Split | None = None  # of a model that is split over several processes
    # a text that the model writes, at each evaluation; on rank 0, and on all stages of the pipeline that this stands in
    sample: Callable[[], str] | None = None
    pictures: Callable[[], Mapping[str, torch.Tensor]] | None = None  # uint8 (3, height, width) by name, likewise
    judged_before: bool = False  # also before the first step, as step 0
    on_host: bool = False  # `batch` reads on the CPU: it gets its indices and keys there, so that no GPU is waited for


@dataclass(frozen=True)
class Split:
    """A process's stage, and its groups: `own` the stages of its pipeline, `peers` those with the same stage.

    `ends` are first and last stage of its pipeline. A group is None where this process or nobody else is in it.
    """

    stages: int
    stage: int  # from 0
    pipelines: int
    pipeline: int  # from 0
    schedule: str  # gpipe or 1f1b
    width: int  # a stage hands so many numbers (float32) to the next for each one, a token say, that comes in
    tied: frozenset[str]  # parameters that first and last stage both have, and keep equal
    own: dist.ProcessGroup
    peers: dist.ProcessGroup | None
    ends: dist.ProcessGroup | None

    @property
    def first(self) -> bool:
        """Whether this stage is given the samples."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.stages - 1

    def rank(self, stage: int) -> int:
        """The rank of a stage of this process's pipeline."""
        return self.pipeline * self.stages + stage

    def duplicates(self, name: str) -> bool:
        """Whether the first stage has this parameter as well, so that it counts there."""
        return self.last and name in self.tied
