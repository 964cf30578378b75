"""From a workload's dataclass of options to its command line, and from what was typed back to the dataclass."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from slipway.options.common import COMMAND_LINE, DEFAULT, PRESET, Options
from slipway.protocol.mistake import ConfigurationError

Kind = TypeVar("Kind", bound=Options)


# What --help shows together, in this order; whatever is nowhere here is a property of what is trained, and comes first.
WHAT = "What"
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        WHAT: ("preset", "config"),
        "Data": (
            "dataset", "column", "tokenizer", "dataset_size", "image_size", "train_pictures", "eval_pictures", "shift", "flip",
            "cutout",
        ),
        "Training": (
            "steps", "epochs", "batch_size", "batch_size_per_process", "accumulate", "lr", "warmup", "schedule", "clip",
            "weight_decay", "momentum", "label_smoothing", "dropout", "seed", "nonfinite_budget", "verify_every",
        ),
        "Saving and judging": (
            "save_every", "keep", "memory_every", "export", "eval_every", "eval_samples", "log_every", "log_to", "sample_tokens",
            "sample_prompt", "temperature",
        ),
        "Speed": (
            "precision", "compile", "workers", "checkpoint_activations", "bucket_mb", "comm", "static_graph",
            "find_unused_parameters",
        ),
    }
)  # fmt: skip


class WorkloadCommand(click.Command):
    """The command line of a workload. Its help shows the options in groups, with the defaults of the preset that is typed."""

    def __init__(self, kind: type[Options], **more: Any) -> None:
        super().__init__(kind.workload, **more)
        self.kind = kind

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; which preset they name is known before `--help` ends all."""
        named = re.search(r"(?:^|\0)--preset(?:=|\0)([^\0]*)", "\0".join(args))
        ctx.meta[PRESET] = named[1] if named else ""
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups."""
        presets = self.kind.presets
        preset = ctx.meta.get(PRESET, "")
        preset = preset if preset in presets else next(iter(presets))
        shown = {option.name or "": option for option in click_options(self.kind, preset)}
        grouped = {name for names in GROUPS.values() for name in names}
        for title, names in GROUPS.items():
            listed = [*names, *(name for name in shown if title == WHAT and name not in grouped)]
            records = [shown[name].get_help_record(ctx) for name in listed if name in shown]
            if rows := [record for record in records if record]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if (helped := self.get_help_option(ctx)) and (record := helped.get_help_record(ctx)):
            with formatter.section("Help"):
                formatter.write_dl([record])
        if len(presets) > 1:
            other = next(name for name in presets if name != preset)
            told = f"slipway {self.kind.workload} --preset {other} --help"
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"The defaults are those of --preset {preset}. To see those of another preset, run: {told}"
                )


def shown_default(kind: type[Options], field: dataclasses.Field[Any], preset: str) -> dict[str, Any]:
    """What click needs to show an option's default under a preset."""
    value = kind.presets[preset].get(field.name, field.default)
    if field.name == "compile" and value is None:
        return {"default": None, "show_default": "on a GPU"}
    return {"default": value, "show_default": True}


def click_options(kind: type[Options], preset: str) -> list[click.Option]:
    """The options of a workload, with what their defaults are under a preset."""
    options = []
    for field in dataclasses.fields(kind):
        if field.name == "sources":
            continue
        name = field.name.replace("_", "-")
        spelling = f"--{name}" if field.metadata["kind"] else f"--{name}/--no-{name}"
        options.append(
            click.Option(
                [spelling, field.name],
                type=field.metadata["kind"],
                help=field.metadata["help"],
                **shown_default(kind, field, preset),
            )
        )
    return options


def click_command(kind: type[Options]) -> click.Command:
    """The click command of a workload, made from its dataclass."""
    # Users mix hyphens and underscores; torchrun takes both as well.
    settings = {
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 120,
    }
    epilog = (
        "The launcher's options, such as --nproc-per-node and --resume, can be mixed with these: slipway run --help"
    )
    if kind.example:
        epilog += f"\n\n\b\nExample: slipway {kind.workload} {kind.example}"
    options = click_options(kind, next(iter(kind.presets)))
    return WorkloadCommand(kind, params=list(options), help=kind.__doc__, epilog=epilog, context_settings=settings)


def parse(kind: type[Kind], args: Sequence[str]) -> Kind:
    """The options that `args` mean: the command line over the --config file over the preset over the defaults.

    Raises click.UsageError for anything on the command line that is not understood, ConfigurationError for anything in
    the file, and click.exceptions.Exit once `--help` is printed.
    """
    command = click_command(kind)
    name = f"slipway {kind.workload}"
    try:
        context = command.make_context(name, list(args))
    except click.BadOptionUsage as error:  # of which click does not say the command
        error.ctx = error.ctx or click.Context(command, info_name=name)
        raise
    typed = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    filed: Mapping[str, tuple[Any, int]] = {}
    if typed.get("config"):
        from slipway.options.config import read_config_file

        filed = read_config_file(Path(typed["config"]), command, context)
    try:
        options = merge(kind, typed, filed)
        options.check()
    except click.UsageError as error:
        error.ctx = context
        raise
    return options


def merge(kind: type[Kind], typed: Mapping[str, Any], filed: Mapping[str, tuple[Any, int]]) -> Kind:
    """Lay the sources over each other. Raises click.UsageError and ConfigurationError where one contradicts itself."""
    first = next(iter(kind.presets))
    preset = typed.get("preset", filed["preset"][0] if "preset" in filed else first)
    named = f"{PRESET} {preset}" if preset else DEFAULT
    layers: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
        (kind.presets[preset], dict.fromkeys(kind.presets[preset], named)),
        (
            {name: value for name, (value, _) in filed.items()},
            {name: f"{typed.get('config')} line {line}" for name, (_, line) in filed.items()},
        ),
        (typed, dict.fromkeys(typed, COMMAND_LINE)),
    ]
    values: dict[str, Any] = {}
    sources = {field.name: DEFAULT for field in dataclasses.fields(kind) if field.name != "sources"}
    for layer, origins in layers:
        for pair in kind.exclusive:
            both = [name for name in pair if name in layer]
            if len(both) == 2:
                refuse_both(both, layer is typed, str(typed.get("config")))
            for name in pair:
                if both and name not in layer:
                    values[name], sources[name] = None, origins[both[0]]
        values |= layer
        sources |= origins
    return kind(**values, sources=sources)


def refuse_both(names: Sequence[str], typed: bool, file: str) -> None:
    """Raise for two options that exclude each other."""
    if typed:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in names)
        raise click.UsageError(f"{options} exclude each other; type one of them.")
    raise ConfigurationError(f"{file}: {' and '.join(names)} exclude each other; keep one of them.")


def option_lines(options: Options) -> list[str]:
    """Each option with its value and where that came from, aligned, for people to read."""
    values = {name.replace("_", "-"): value for name, value in options.values().items()}
    width, wide = max(map(len, values)), max(len(as_typed(value)) for value in values.values())
    return [
        f"{name:<{width}}  {as_typed(value):<{wide}}  {options.sources.get(name.replace('-', '_'), DEFAULT)}"
        for name, value in values.items()
    ]


def as_typed(value: Any) -> str:
    """A value as it would be typed."""
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
