"""The launcher's own options, and how they are told from those of a program behind them.

They are understood before a workload's name and behind it; behind a user's own program everything is that program's.
"""

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from slipway.launch.errors import LaunchError
from slipway.launch.settings import SETTINGS

RDZV = {
    "--rdzv-backend": "the rendezvous is always static; nothing replaces it",
    "--rdzv-endpoint": "use --master-addr HOST and --master-port PORT",
    "--rdzv-id": "use --run-dir DIR to name the run",
    "--rdzv-conf": "nothing replaces it",
}


def hyphens(name: str) -> str:
    """An option's name as we write it: people mix hyphens and underscores, and torchrun takes both."""
    return name.replace("_", "-")


CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": hyphens, "max_content_width": 110}


def launcher_options() -> list[click.Parameter]:
    """The options that `run` and `plan` take, from the table of settings; torchrun's own names among them."""
    options: list[click.Parameter] = []
    for setting in SETTINGS:
        if setting.option:
            kind: dict[str, Any] = {"metavar": setting.metavar}
            if setting.flag:
                kind = {"is_flag": True, "flag_value": "1"}
            text = f"{setting.help}  [{setting.name}, default {setting.default or 'none'}]"
            options.append(click.Option([setting.option, setting.name], default=None, help=text, **kind))
    options += [
        click.Option(["--standalone"], is_flag=True, help="A single node, whatever the environment says."),
        click.Option(["--env-file"], metavar="FILE", help="Read this file instead of ./.env."),
    ]
    return options + [click.Option([name], hidden=True, callback=_refuse_rdzv) for name in RDZV]


WORDS = click.Argument(
    ["words"], nargs=-1, type=click.UNPROCESSED, metavar="[WORKLOAD|SCRIPT.py|-m MODULE] [ARGUMENTS]"
)


def _refuse_rdzv(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = f"--{hyphens(option.name or '')}"
        raise LaunchError(f"{name} is torchrun's: {RDZV[name]}.")


class Launching(click.Command):
    """A command whose words end with a program and that program's own arguments, `-m MODULE` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `--` in front of the `-m` that starts a module, as in front of a script's name there is no need to."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        before = ""
        for index, word in enumerate(args):
            if word == "-m":
                args = [*args[:index], "--", *args[index:]]
                break
            if not word.startswith("-") and (not before.startswith("--") or "=" in before or hyphens(before) in flags):
                break  # the program; what follows is its own
            before = word
        return super().parse_args(ctx, args)


def take_options(
    words: Sequence[str], options: Sequence[click.Parameter], command: str = "slipway run"
) -> tuple[dict[str, Any], list[str]]:
    """Take a command's options out of the words behind one of our workloads; the rest is the workload's."""
    parser = click.Command("", params=list(options), add_help_option=False)
    parser.context_settings = {**CONTEXT, "ignore_unknown_options": True, "allow_extra_args": True}
    context = parser.make_context(command, list(words))
    typed = (name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return {name: context.params[name] for name in typed}, context.args
