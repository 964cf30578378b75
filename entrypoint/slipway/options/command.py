"""From a workload's dataclass of options to its command line, and from what was typed back to the dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from slipway.options.common import COMMAND_LINE, DEFAULT, PRESET, Options
from slipway.protocol.mistake import ConfigurationError

Kind = TypeVar("Kind", bound=Options)
COMPILE_WORDS = {True: "compile", False: "no-compile", None: "compile on a GPU"}


def shown_default(kind: type[Options], field: dataclasses.Field[Any]) -> dict[str, Any]:
    """What click needs to show an option's default: the value, or all of them where presets differ."""
    values = {name: preset.get(field.name, field.default) for name, preset in kind.presets.items()}
    if len(set(values.values())) == 1:
        return {"default": next(iter(values.values())), "show_default": True}
    words = COMPILE_WORDS if field.name == "compile" else {}
    return {
        "default": None,
        "show_default": ", ".join(f"{name}: {words.get(value, value)}" for name, value in values.items()),
    }


def click_command(kind: type[Options]) -> click.Command:
    """The click command of a workload, made from its dataclass."""
    parameters: list[click.Parameter] = []
    for field in dataclasses.fields(kind):
        if field.name == "sources":
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
    settings = {
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 120,
    }
    epilog = "The launcher's options, such as --nproc-per-node and --resume, may stand among these: slipway run --help"
    if kind.example:
        epilog += f"\n\n\b\nExample: slipway {kind.workload} {kind.example}"
    return click.Command(kind.workload, params=parameters, help=kind.__doc__, epilog=epilog, context_settings=settings)


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
