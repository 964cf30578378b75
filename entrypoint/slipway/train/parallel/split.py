"""Which part of a split model a process has: its stage of a pipeline, and the processes that it shares work with.

Rank = pipeline × stages + stage, so a pipeline's stages are neighbours, on one node where they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from slipway.protocol.mistake import ConfigurationError
from slipway.train.worker.context import Context
from slipway.train.worker.group import COLLECTIVE_TIMEOUT, silent_stdout


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


def join_pipelines(context: Context, stages: int, schedule: str, width: int, tied: Sequence[str]) -> Split:
    """The split of this process; by all ranks. Raises ConfigurationError where `stages` do not divide their number."""
    world_size = context.place.world_size
    if stages < 2 or world_size % stages:
        raise ConfigurationError(f"--stages {stages} does not divide {world_size} processes into pipelines.")
    if context.device.type == "cuda" and context.place.backend == "gloo":
        raise ConfigurationError("Stages exchange what they compute over nccl, which needs a GPU for each process.")
    pipeline, stage = divmod(context.place.rank, stages)
    pipelines = world_size // stages
    groups = [[first + number for number in range(stages)] for first in range(0, world_size, stages)]
    rows = [open_one_of(groups, context), open_one_of([list(row) for row in zip(*groups, strict=True)], context)]
    ends = open_one_of([[group[0], group[-1]] for group in groups], context)
    assert rows[0] is not None
    return Split(stages, stage, pipelines, pipeline, schedule, width, frozenset(tied), rows[0], rows[1], ends)


def open_one_of(groups: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup | None:
    """Make all `groups` of ranks; by all ranks. Returns the one that this rank is in, None if it is alone there."""
    mine = None
    for ranks in groups:
        if len(ranks) > 1:
            with silent_stdout():
                group = dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT)
            mine = group if context.place.rank in ranks else mine
    return mine
