"""Options of `linear`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, Common, option
from slipway.options.numbers import Whole
from slipway.protocol.mistake import ConfigurationError


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class LinearOptions(Common):
    """Train one linear layer on synthetic binary labels: the smallest data-parallel job."""

    workload: ClassVar[str] = "linear"
    example: ClassVar[str] = "--compare"
    # fp32, so that any number of processes ends with the same weights; one small layer gains nothing from less.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {"epochs": 10, "batch_size": 32, "lr": 0.1, "precision": "fp32"}
    }

    input_size: int = option(20, COUNT, "Number of inputs per sample.")
    dataset_size: int = option(4096, COUNT, "Training samples; a quarter as many are drawn for the evaluation.")
    compare: bool = option(False, None, "Also train without DDP, and show the weights of both side by side.")
    launcher: str = option(
        "torchrun",
        click.Choice(["torchrun", "spawn"]),
        "The program that starts the processes; spawn is torch.multiprocessing.",
    )
    world_size: int | None = option(
        None, Whole(1, 1024), "Total number of processes, only with --launcher spawn; by default one per GPU, or two."
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for --world-size with torchrun."""
        super().check()
        if self.world_size and self.launcher != "spawn":
            raise ConfigurationError(
                f"--world-size {self.world_size} counts processes and belongs to --launcher spawn. With torchrun type "
                f"--nproc-per-node {self.world_size} (processes on each node), and --nnodes N for several nodes."
            )
        for name, value, exact in (("precision", self.precision, "fp32"), ("comm", self.comm, "full")):
            if self.compare and value != exact:
                raise click.UsageError(
                    f"--{name} {value} rounds the weights that --compare expects to be equal. "
                    f"Type --{name} {exact}, or omit the option."
                )
