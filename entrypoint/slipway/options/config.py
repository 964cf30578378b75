"""`--config FILE.yaml`: options by name, one per line, understood as if they had been typed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from slipway.protocol.mistake import ConfigurationError, did_you_mean

WORDS: Mapping[str, bool] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read_config_file(path: Path, command: click.Command, context: click.Context) -> dict[str, tuple[Any, int]]:
    """The options in a YAML file, each with its line. Empty values count as not given.

    Raises ConfigurationError naming file and line for a file that is no mapping, an unknown name (with the nearest), a
    name given twice, and a value of the wrong type.
    """
    options = {option.name: option for option in command.params if option.name not in (None, "config", "help")}
    found: dict[str, tuple[Any, int]] = {}
    for key, value in read_pairs(path):
        line = key.start_mark.line + 1
        name = str(key.value).replace("-", "_")
        if name not in options:
            listed = f" Options are listed by: slipway {command.name} --help"
            meant = did_you_mean(name, (str(known) for known in options)) or listed
            raise ConfigurationError(f"{path} line {line}: there is no option {key.value!r}.{meant}")
        if name in found:
            raise ConfigurationError(f"{path} line {line}: {name} is given already in line {found[name][1]}.")
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigurationError(f"{path} line {line}: {name} takes a single value, not a list or a mapping.")
        if value.value not in ("", "null", "~"):
            found[name] = read_value(options[name], value.value, context, f"{path} line {line}"), line
    return found


def read_pairs(path: Path) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a YAML mapping, with their lines. Raises ConfigurationError."""
    try:
        document = yaml.compose(path.read_text(), yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigurationError(
            f"{path}{line} is no YAML: {', '.join(filter(None, (error.context, error.problem)))}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no YAML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if document is None:
        return []
    if not isinstance(document, yaml.MappingNode):
        raise ConfigurationError(f"{path} line 1: expected lines of the form `name: value`.")
    return list(document.value)


def read_value(option: click.Parameter, text: str, context: click.Context, place: str) -> Any:
    """The value that `text` means for an option. Raises ConfigurationError naming the place."""
    if getattr(option, "is_flag", False):
        if text.lower() not in WORDS:
            raise ConfigurationError(f"{place}: {option.name} is true or false, not {text!r}.")
        return WORDS[text.lower()]
    try:
        return option.type.convert(text, option, context)
    except click.BadParameter as error:
        raise ConfigurationError(f"{place}: {option.name}: {error.message}") from None
