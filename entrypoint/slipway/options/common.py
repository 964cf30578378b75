"""How options are declared, and those that every training has."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from slipway.options.kind import Kind
from slipway.options.numbers import Real, Whole
from slipway.options.paths import LocalPath
from slipway.options.target import require_target
from slipway.protocol.mistake import ConfigurationError

COUNT = Whole(min=1)
COUNT_OR_ZERO = Whole(min=0)
POSITIVE = Real(min=0, min_open=True)
NOT_NEGATIVE = Real(min=0)
SHARE = Real(min=0, max=1, max_open=True)
FILE = LocalPath(exists=True, dir_okay=False)
AUTO = "auto"


class AutoOrCount(Kind[int | str]):
    """A number of steps, 0 for never, or `auto`: the training chooses."""

    name = "auto|integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """The number or `auto`. Fails with what is allowed."""
        if value == AUTO:
            return AUTO
        try:
            return COUNT_OR_ZERO.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither auto nor a number of steps (0: never).", param, ctx)


AUTO_OR_COUNT = AutoOrCount()
# What --log-to knows, by the name of the package that each needs: the class of its sink, and the module of that.
SERVICES = {
    "wandb": ("WeightsAndBiases", "slipway.train.observe.weights_and_biases"),
    "mlflow": ("Mlflow", "slipway.train.observe.mlflow_run"),
}


class Services(Kind[str]):
    """Names out of SERVICES, separated by commas; empty for none."""

    name = "|".join(SERVICES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The names without blanks, each once. Fails with what is allowed."""
        names = list(dict.fromkeys(filter(None, re.split(r"[\s,]+", str(value)))))
        if unknown := [name for name in names if name not in SERVICES]:
            self.fail(f"{unknown[0]!r} is none of {', '.join(SERVICES)}.", param, ctx)
        return ",".join(names)


# Where an option's value came from, if not from a line of the --config file.
DEFAULT, PRESET, COMMAND_LINE = "default", "preset", "command line"
FP16_NEEDS_GPU = "--precision fp16 needs a GPU; on a CPU type --precision bf16 or --precision fp32."
FILE_LINE = r" line \d+$"  # how the source of a value from that file ends, behind the file's name


def is_given(source: str) -> bool:
    """Whether a value from `source` is the user's own: typed, or in a file, which may be called default.yaml."""
    return source == COMMAND_LINE or re.search(FILE_LINE, source) is not None


def option(default: Any, kind: click.ParamType[Any] | None, text: str) -> Any:
    """One option: its default, its click type (None makes a flag `--x/--no-x`) and its line in `--help`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": text})


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Options:
    """What was asked of a workload. `sources` says of each option where its value came from.

    The classes below declare options only: methods that dataclasses made for each class would take milliseconds of every start.
    """

    workload: ClassVar[str]
    example: ClassVar[str] = ""  # what may stand behind the name; --help shows it
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    # Of these only one may be given; the stronger source wins (the command line over a file over a preset).
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: str | None = option(
        None, FILE, "A YAML file with these options by name; the command line takes precedence."
    )

    def __init__(self, **values: Any) -> None:
        """Take values by the names of the options; one that is left out has its default. Raises TypeError for other names."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        if unknown := values.keys() - defaults.keys():
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}")
        vars(self).update(defaults | {"sources": {}} | values)

    @property
    def given(self) -> frozenset[str]:
        """The options that the user gave, on the command line or in a file."""
        return frozenset(name for name, source in self.sources.items() if is_given(source))

    def values(self) -> dict[str, Any]:
        """The value of each option, by name."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "sources"]
        return {name: getattr(self, name) for name in names}

    @property
    def reads_stdlib(self) -> bool:
        """Whether the data are Python's own library, which differs between versions of Python."""
        return False

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""

    def packages(self) -> Mapping[str, str]:
        """Packages that not every image has, with the option of these that needs each."""
        return {}

    def foresee(self) -> None:
        """Raise ConfigurationError for what training would find out, as far as a look at the files tells a launcher."""


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Common(Options):
    """Options of every training."""

    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (("steps", "epochs"), ("batch_size", "batch_size_per_process"))

    steps: int | None = option(None, COUNT, "Total number of optimizer steps; excludes --epochs.")
    epochs: int | None = option(None, COUNT, "Passes over the training data; excludes --steps.")
    batch_size: int | None = option(32, COUNT, "Samples per optimizer step, all processes together.")
    batch_size_per_process: int | None = option(
        None,
        COUNT,
        "Samples per optimizer step of one process; more processes make the batch larger. Excludes --batch-size.",
    )
    accumulate: int = option(
        1, COUNT, "Gradient accumulation: number of micro-batches in which each process computes its part of a batch."
    )
    lr: float = option(0.1, POSITIVE, "Highest learning rate.")
    warmup: int = option(0, COUNT_OR_ZERO, "Steps over which the learning rate rises from zero.")
    schedule: str = option(
        "constant", click.Choice(["cosine", "linear", "constant"]), "Learning rate after the warm-up."
    )
    clip: float = option(0.0, NOT_NEGATIVE, "Largest gradient norm; 0 turns clipping off.")
    weight_decay: float = option(0.0, NOT_NEGATIVE, "Weight decay of matrices.")
    precision: str = option(
        "auto",
        click.Choice(["auto", "fp32", "bf16", "fp16"]),
        "Arithmetic; auto selects the precision that is fast on this hardware.",
    )
    compile: bool | None = option(False, None, "Compile the model with torch.compile.")
    bucket_mb: float = option(25.0, POSITIVE, "DDP: gradients are averaged in buckets of this many MB.")
    static_graph: bool = option(False, None, "DDP: promise that every step uses the same parameters in the same order.")
    find_unused_parameters: bool = option(False, None, "DDP: allow steps in which parameters get no gradient.")
    comm: str = option(
        "full",
        click.Choice(["full", "bf16", "fp16"]),
        "DDP: the format in which gradients are exchanged; full leaves them unchanged.",
    )
    seed: int = option(0, Whole(0, 2**32 - 1), "Seed of weights, data order and dropout.")
    save_every: int = option(0, COUNT_OR_ZERO, "Steps between snapshots; 0 saves only at the end.")
    keep: int = option(2, COUNT, "Snapshots to keep.")
    memory_every: str | int = option(
        AUTO,
        AUTO_OR_COUNT,
        "Steps between snapshots in memory, from which a job resumes after a failure; auto: so that they cost 1 % of the "
        "time; 0: none.",
    )
    nonfinite_budget: int = option(
        10, COUNT_OR_ZERO, "Steps in a row that may be skipped because their loss or gradient is not finite."
    )
    verify_every: int | str = option(
        AUTO,
        AUTO_OR_COUNT,
        "Steps between comparisons of the replicas, bit for bit; auto: so that they cost 0.5 % of the time; 0: never.",
    )
    replay_every: int | str = option(
        0,  # it needs memory for a second set of gradients, and on GPUs was only tried without faults
        AUTO_OR_COUNT,
        "Steps between replays, in which all ranks compute the same micro-batch and compare the results; auto: so that they "
        "cost 0.5 % of the time; 0: never.",
    )
    workers: int = option(
        0, COUNT_OR_ZERO, "Threads that prepare batches in advance; 0 prepares each batch when it is needed."
    )
    eval_every: int = option(0, COUNT_OR_ZERO, "Steps between evaluations; 0 evaluates only at the end.")
    log_every: int = option(50, COUNT, "Steps between lines of progress.")
    log_to: str = option(
        "",
        Services(),
        f"Experiment trackers that also receive the metrics, separated by commas: {', '.join(SERVICES)}.",
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        for name in ("batch_size", "batch_size_per_process"):
            size = getattr(self, name)
            if size and size % self.accumulate:
                typed = f"--{name.replace('_', '-')} {size}"
                raise click.UsageError(f"--accumulate {self.accumulate} does not divide {typed}.")
        for service in filter(None, self.log_to.split(",")):
            found = importlib.util.find_spec(service)
            if found is None or found.origin is None:  # a folder of this name is no package
                install = f"{sys.executable} -m pip install {service}"
                if os.environ.get("SLIPWAY_IMAGE"):  # what is installed in a container is gone with it
                    lines = f"FROM slipway:dev\\nUSER root\\nRUN {install}\\nUSER 1000:0\\n"
                    install = f"printf '{lines}' | docker build --tag slipway:with-{service} -"
                raise ConfigurationError(
                    f"--log-to {service} needs the Python package {service}, which is not installed here. Type: {install}"
                )

    def require_device(self, device: str) -> None:
        """Raise ConfigurationError for arithmetic that `device`, cuda or cpu, cannot do."""
        if self.precision == "fp16" and device == "cpu":
            raise ConfigurationError(FP16_NEEDS_GPU)

    def divide_batch(self, readers: int, counted: str = "processes") -> int:
        """The samples of a step, all processes together: as many as were typed, or the default made divisible.

        `readers` share them: all processes, or where these are `counted` as pipelines all of those. Raises ConfigurationError.
        """
        if self.batch_size_per_process:
            return self.batch_size_per_process * readers
        parts = readers * self.accumulate
        if not self.batch_size:
            raise ConfigurationError("Type --batch-size or --batch-size-per-process.")
        above = math.ceil(self.batch_size / parts) * parts
        if above == self.batch_size or "batch_size" not in self.given:
            return above
        below = above - parts
        raise ConfigurationError(
            f"--batch-size {self.batch_size} counts all processes, and is not a multiple of {readers} {counted} × "
            f"--accumulate {self.accumulate}. Type --batch-size {f'{below} or {above}' if below else above}."
        )


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Exportable(Common):
    """Options of a training whose result can be used elsewhere."""

    export: str | None = option(
        None,
        LocalPath(file_okay=False),
        "Write the trained model to this folder, in the format that from_pretrained reads.",
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError where --export cannot go."""
        super().check()
        if self.export:
            require_target(Path(self.export))
