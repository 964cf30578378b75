"""How options are declared, and those that every training has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from slipway.options.target import require_target

COUNT = click.IntRange(min=1)
COUNT_OR_ZERO = click.IntRange(min=0)


class AutoOrCount(click.ParamType[Any]):
    """`auto`, or a number from 0 on."""

    name = "auto|integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """The value, or click's error."""
        if value != "auto" and not str(value).isdigit():
            self.fail(f"{value!r} is neither auto nor a number from 0 on.", param, ctx)
        return "auto" if value == "auto" else int(value)


POSITIVE = click.FloatRange(min=0, min_open=True)
NOT_NEGATIVE = click.FloatRange(min=0)
SHARE = click.FloatRange(min=0, max=1, max_open=True)
FILE = click.Path(exists=True, dir_okay=False)

# Where an option's value came from, if not from a line of the --config file.
DEFAULT, PRESET, COMMAND_LINE = "default", "preset", "command line"
FILE_LINE = re.compile(r" line \d+$")  # how the source of a value from that file ends, behind the file's name


def is_given(source: str) -> bool:
    """Whether a value from `source` is the user's own: typed, or in a file, which may be called default.yaml."""
    return source == COMMAND_LINE or FILE_LINE.search(source) is not None


def option(default: Any, kind: click.ParamType[Any] | None, text: str) -> Any:
    """One option: its default, its click type (None makes a flag `--x/--no-x`) and its line in `--help`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked of a workload. `sources` says of each option where its value came from."""

    workload: ClassVar[str]
    example: ClassVar[str] = ""  # what may stand behind the name; --help shows it
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    # Of these only one may be given; the stronger source wins (the command line over a file over a preset).
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: str | None = option(None, FILE, "A YAML file of these options by name; the command line wins.")

    @property
    def given(self) -> frozenset[str]:
        """The options that the user gave, on the command line or in a file."""
        return frozenset(name for name, source in self.sources.items() if is_given(source))

    def values(self) -> dict[str, Any]:
        """The value of each option, by name."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "sources"]
        return {name: getattr(self, name) for name in names}

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common(Options):
    """Options of every training."""

    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (
        ("steps", "epochs"),
        ("batch_size", "batch_size_per_process"),
    )

    steps: int | None = option(None, COUNT, "Optimizer steps in all; excludes --epochs.")
    epochs: int | None = option(None, COUNT, "Passes over the training data; excludes --steps.")
    batch_size: int | None = option(32, COUNT, "Samples per optimizer step, all processes together.")
    batch_size_per_process: int | None = option(
        None, COUNT, "The same for one process, so that more processes make the batch larger; excludes --batch-size."
    )
    accumulate: int = option(
        1, COUNT, "Gradient accumulation: micro-batches into which each process splits its share of a batch."
    )
    lr: float = option(0.1, POSITIVE, "Highest learning rate.")
    warmup: int = option(0, COUNT_OR_ZERO, "Steps over which the learning rate rises from zero.")
    schedule: str = option(
        "constant", click.Choice(["cosine", "linear", "constant"]), "Learning rate after the warm-up."
    )
    clip: float = option(0.0, NOT_NEGATIVE, "Largest gradient norm; 0 does not clip.")
    weight_decay: float = option(0.0, NOT_NEGATIVE, "Weight decay of matrices.")
    precision: str = option(
        "auto", click.Choice(["auto", "fp32", "bf16", "fp16"]), "Arithmetic; auto takes what this hardware is fast at."
    )
    compile: bool | None = option(False, None, "Compile the model with torch.compile.")
    bucket_mb: float = option(25.0, POSITIVE, "DDP: gradients are averaged in buckets of this many MB.")
    static_graph: bool = option(False, None, "DDP: promise that every step uses the same parameters in the same order.")
    find_unused_parameters: bool = option(False, None, "DDP: allow steps in which parameters get no gradient.")
    comm: str = option(
        "full",
        click.Choice(["full", "bf16", "fp16"]),
        "DDP: the form in which gradients travel; full sends them as they are.",
    )
    seed: int = option(0, click.IntRange(0, 2**32 - 1), "Seed of weights, data order and dropout.")
    save_every: int = option(0, COUNT_OR_ZERO, "Steps between snapshots; 0 saves at the end only.")
    keep: int = option(2, COUNT, "Snapshots to keep.")
    memory_every: str | int = option(
        "auto",
        AutoOrCount(),
        "Steps between snapshots in memory, from which a job goes on after a failure; auto: as many as make them cost 1 % "
        "of the time, 0: none.",
    )
    nonfinite_budget: int = option(
        10, COUNT_OR_ZERO, "Steps in a row that may be skipped because their loss or gradient is not finite."
    )
    workers: int = option(0, COUNT_OR_ZERO, "Threads that prepare batches ahead; 0 prepares each when it is needed.")
    eval_every: int = option(0, COUNT_OR_ZERO, "Steps between evaluations; 0 evaluates at the end only.")
    log_every: int = option(50, COUNT, "Steps between lines of progress.")

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        for name in ("batch_size", "batch_size_per_process"):
            size = getattr(self, name)
            if size and size % self.accumulate:
                typed = f"--{name.replace('_', '-')} {size}"
                raise click.UsageError(f"--accumulate {self.accumulate} does not divide {typed}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exportable(Common):
    """Options of a training whose result can be used elsewhere."""

    export: str | None = option(
        None,
        click.Path(file_okay=False),
        "Write the trained model into this folder, in the form that from_pretrained reads.",
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError where --export cannot go."""
        super().check()
        if self.export:
            require_target(Path(self.export))
