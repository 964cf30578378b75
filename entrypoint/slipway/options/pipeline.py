"""Options of `pipeline`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, option
from slipway.options.gpt import PRESETS, GptOptions
from slipway.protocol.mistake import ConfigurationError

PARTS = 4  # of a batch at least: twice as many as there are stages, of which each idles for a fifth of the step
DDP = ("bucket_mb", "static_graph", "find_unused_parameters")


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class PipelineOptions(GptOptions):
    """Train the transformer of `gpt`, split into pipeline stages and replicated over the remaining processes."""

    workload: ClassVar[str] = "pipeline"
    example: ClassVar[str] = "--stages 2 --nproc-per-node 2 --steps 50"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {**preset, "accumulate": max(PARTS, preset["accumulate"])} for name, preset in PRESETS.items()
    }

    stages: int = option(2, COUNT, "Number of stages, one per process; must divide the number of processes.")
    pipeline_schedule: str = option(
        "1f1b",
        click.Choice(["1f1b", "gpipe"]),
        "Order of the micro-batches: gpipe runs all forward passes, then all backward passes; 1f1b alternates, with less memory.",
    )
    accumulate: int = option(
        PARTS,
        COUNT,
        "Micro-batches per step; at least --stages, preferably twice as many or more.",
    )

    def possible_stages(self, processes: int) -> list[int]:
        """The numbers of stages into which this model can be split on so many processes."""
        return [number for number in range(1, min(processes, self.layers) + 1) if processes % number == 0]

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for what cannot be split."""
        super().check()
        if self.stages > self.layers:
            raise ConfigurationError(
                f"--stages {self.stages} is more than the {self.layers} layers of the model. Type 1 to {self.layers} for "
                "--stages, or more --layers."
            )
        if self.stages == 1:
            return
        if self.memory_every not in ("auto", 0):
            raise click.UsageError(
                "--memory-every needs the whole model in each process. With --stages above 1, snapshots are saved only on disk. "
                "Omit the option."
            )
        if self.accumulate < self.stages:
            raise click.UsageError(
                f"--accumulate {self.accumulate} leaves some of --stages {self.stages} without work. Type --accumulate "
                f"{self.stages} or more; {2 * self.stages} is a good start."
            )
        for name in DDP:
            if name in self.given:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is DistributedDataParallel's, which only --stages 1 uses; leave it out."
                )
