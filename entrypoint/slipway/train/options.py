"""What a user may type after the name of a workload: one frozen dataclass per workload, and its command line.

The launcher calls `parse` before it starts anything, each worker calls it again. Nothing but click is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click
from click.core import ParameterSource

COUNT = click.IntRange(min=1)
COUNT_OR_ZERO = click.IntRange(min=0)
POSITIVE = click.FloatRange(min=0, min_open=True)
NOT_NEGATIVE = click.FloatRange(min=0)


class ConfigurationError(Exception):
    """A mistake of the user's that shows only once training starts; the message says what to type instead."""


def option(default: Any, kind: click.ParamType[Any] | None, text: str) -> Any:
    """One option: its default, its click type (None makes a flag `--x/--no-x`) and its line in `--help`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """Options that every workload has. `given` names those that the user typed; the others are defaults."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}

    given: frozenset[str] = frozenset()
    steps: int | None = option(None, COUNT, "Optimizer steps in all; excludes --epochs.")
    epochs: int | None = option(None, COUNT, "Passes over the training data; excludes --steps.")
    batch_size: int = option(32, COUNT, "Samples per optimizer step, all processes together.")
    accumulate: int = option(1, COUNT, "Parts into which each process splits its share of a batch.")
    lr: float = option(0.1, POSITIVE, "Highest learning rate.")
    warmup: int = option(0, COUNT_OR_ZERO, "Steps over which the learning rate rises from zero.")
    schedule: str = option("constant", click.Choice(["cosine", "constant"]), "Learning rate after the warm-up.")
    clip: float = option(0.0, NOT_NEGATIVE, "Largest gradient norm; 0 does not clip.")
    weight_decay: float = option(0.0, NOT_NEGATIVE, "Weight decay of matrices.")
    precision: str = option(
        "auto", click.Choice(["auto", "fp32", "bf16", "fp16"]), "Arithmetic; auto takes what this hardware is fast at."
    )
    compile: bool | None = option(False, None, "Compile the model with torch.compile.")
    seed: int = option(0, click.IntRange(0, 2**32 - 1), "Seed of weights, data order and dropout.")
    save_every: int = option(0, COUNT_OR_ZERO, "Steps between snapshots; 0 saves at the end only.")
    keep: int = option(2, COUNT, "Snapshots to keep.")
    nonfinite_budget: int = option(
        10, COUNT_OR_ZERO, "Steps in a row that may be skipped because their loss or gradient is not finite."
    )
    workers: int = option(0, COUNT_OR_ZERO, "Threads that prepare batches ahead; 0 prepares each when it is needed.")
    eval_every: int = option(0, COUNT_OR_ZERO, "Steps between evaluations; 0 evaluates at the end only.")
    log_every: int = option(50, COUNT, "Steps between lines of progress.")

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        if {"steps", "epochs"} <= self.given:
            raise click.UsageError("--steps and --epochs exclude each other; type one of them.")
        if self.batch_size % self.accumulate:
            raise click.UsageError(f"--accumulate {self.accumulate} does not divide --batch-size {self.batch_size}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearOptions(Common):
    """Train one linear layer on synthetic binary labels: the smallest data-parallel job."""

    # fp32, so that any number of processes ends with the same weights; one small layer gains nothing from less.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {"epochs": 10, "batch_size": 32, "lr": 0.1, "precision": "fp32"}
    }

    input_size: int = option(20, COUNT, "Numbers per sample.")
    dataset_size: int = option(4096, COUNT, "Training samples; a quarter as many are drawn for the evaluation.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOptions(Common):
    """Train a GPT-2 style transformer on text."""

    # tiny: about a minute on two CPU cores. gpt2: the dimensions of GPT-2 124M, the schedule of nanoGPT's reproduction
    # (https://github.com/karpathy/nanoGPT, config/train_gpt2.py).
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            "layers": 4, "heads": 4, "embed": 128, "context": 128, "vocab_size": 256,
            "steps": 1000, "batch_size": 16, "accumulate": 1, "lr": 6e-3, "warmup": 100, "schedule": "cosine",
            "clip": 1.0, "weight_decay": 0.1, "compile": False, "save_every": 500, "eval_every": 500,
        },
        "gpt2": {
            "layers": 12, "heads": 12, "embed": 768, "context": 1024, "vocab_size": 50257,
            "steps": 600_000, "batch_size": 480, "accumulate": 20, "lr": 6e-4, "warmup": 2000, "schedule": "cosine",
            "clip": 1.0, "weight_decay": 0.1, "compile": None, "save_every": 1000, "eval_every": 1000,
        },
    }  # fmt: skip

    preset: str = option("tiny", click.Choice(list(presets)), "Size of the model and a schedule to match.")
    layers: int = option(4, COUNT, "Transformer blocks.")
    heads: int = option(4, COUNT, "Attention heads per block.")
    embed: int = option(128, COUNT, "Width of the model.")
    context: int = option(128, COUNT, "Tokens that the model sees at once; the length of a sample.")
    vocab_size: int = option(256, click.IntRange(min=256), "Different tokens; text is read as bytes, which need 256.")
    dropout: float = option(0.0, click.FloatRange(min=0, max=1, max_open=True), "Share of activations dropped.")
    data: str = option("stdlib", click.Choice(["stdlib"]), "Text: stdlib is the Python standard library's source.")
    eval_samples: int = option(1024, COUNT, "Validation samples used by each evaluation.")
    sample_tokens: int = option(300, COUNT_OR_ZERO, "Length of the text written at the end; 0 writes none.")
    sample_prompt: str = option("def ", click.STRING, "How that text begins.")
    temperature: float = option(0.6, NOT_NEGATIVE, "Randomness of that text; 0 takes the likeliest token.")

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        super().check()
        if self.embed % self.heads:
            raise click.UsageError(f"--heads {self.heads} does not divide --embed {self.embed}.")


WORKLOADS: Mapping[str, type[Common]] = {"gpt": GptOptions, "linear": LinearOptions}


def shown_default(kind: type[Common], field: dataclasses.Field[Any]) -> dict[str, Any]:
    """What click needs to show an option's default: the value, or all of them where presets differ."""
    values = {name: preset.get(field.name, field.default) for name, preset in kind.presets.items()}
    if len(set(values.values())) == 1:
        return {"default": next(iter(values.values())), "show_default": True}
    words = {True: "compile", False: "no-compile", None: "compile on a GPU"} if field.name == "compile" else {}
    return {
        "default": None,
        "show_default": ", ".join(f"{name}: {words.get(value, value)}" for name, value in values.items()),
    }


def click_command(workload: str) -> click.Command:
    """The click command of a workload, made from its dataclass."""
    kind = WORKLOADS[workload]
    parameters: list[click.Parameter] = []
    for field in dataclasses.fields(kind):
        if field.name == "given":
            continue
        name = field.name.replace("_", "-")
        spelling = f"--{name}" if field.metadata["kind"] else f"--{name}/--no-{name}"
        parameters.append(
            click.Option(
                [spelling, field.name],
                type=field.metadata["kind"],
                help=field.metadata["help"],
                **shown_default(kind, field),
            )
        )
    # Users mix hyphens and underscores; torchrun takes both as well.
    settings = {"token_normalize_func": lambda token: token.replace("_", "-"), "max_content_width": 120}
    epilog = "The launcher's options, such as --nproc-per-node and --resume, may stand among these: slipway run --help"
    return click.Command(workload, params=parameters, help=kind.__doc__, epilog=epilog, context_settings=settings)


def parse(workload: str, args: Sequence[str]) -> Common:
    """The options of `workload` that `args` mean, defaults filled in.

    Raises click.UsageError for anything that is not understood, and click.exceptions.Exit once `--help` is printed.
    """
    if workload not in WORKLOADS:
        raise click.UsageError(f"Unknown workload {workload!r}; available are {', '.join(sorted(WORKLOADS))}.")
    kind = WORKLOADS[workload]
    context = click_command(workload).make_context(f"slipway {workload}", list(args))
    typed = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    values = {**kind.presets[typed.get("preset", next(iter(kind.presets)))], **typed}
    if "epochs" in typed and "steps" not in typed:
        values["steps"] = None
    if "steps" in typed and "epochs" not in typed:
        values["epochs"] = None
    options = kind(**values, given=frozenset(typed))
    try:
        options.check()
    except click.UsageError as error:
        error.ctx = context
        raise
    return options
