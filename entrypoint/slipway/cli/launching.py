"""The launcher's own options, and how they are told from those of a program behind them.

They are understood before a workload's name and behind it; behind a user's own program everything is that program's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.rdzv import OPTIONS as RDZV
from slipway.launch.resolve.settings import BY_NAME, SETTINGS
from slipway.options.paths import LocalPath
from slipway.protocol.errors import LaunchError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What replaces torchrun's options beside ours and those of its rendezvous; nothing where what they ask for is so here anyway.
TORCHRUN = {
    ("--tee", "-t"): "",
    ("--monitor-interval",): "",
    ("--start-method",): "",
    (
        "--redirects",
        "-r",
    ): "`slipway logs` shows what each rank printed, and > FILE redirects the output of the job to a file",
    ("--log-dir",): "use --run-dir DIR or --runs DIR; the log of each rank is in the run's node-R/logs",
    ("--role",): "all workers have the same role; nothing replaces it",
    ("--local-addr",): "use NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to choose a network",
    ("--numa-binding",): "use --cpu-binding",
    (
        "--use-env",
    ): "leave it out: LOCAL_RANK is in the environment of each process, and nothing is added to its arguments",
    ("--run-path",): "leave it out: the script's path is enough",
    ("--virtual-local-rank",): "nothing replaces it: each process finds its GPU by LOCAL_RANK",
    ("--shutdown-timeout",): "use --after-failure-seconds S",
    ("--log-line-prefix-template",): "leave it out: each line begins with its node and rank",
    ("--print-completion",): "use `slipway completion SHELL`",
    ("--signals-to-handle",): "leave it out: SIGTERM, SIGUSR1, SIGHUP and Ctrl-C stop a job",
    ("--local-ranks-filter",): "`slipway logs --rank LIST` shows the lines of chosen ranks",
    ("--duplicate-stdout-filters",): "`slipway logs --grep REGEX` shows the lines that match",
    ("--duplicate-stderr-filters",): "`slipway logs --grep REGEX` shows the lines that match",
    ("--event-log-handler",): "leave it out: `slipway status` reports what happened in a run",
    ("--logs-specs",): "leave it out: the log of each rank is in the run's node-R/logs",
}
TORCHRUN_FLAGS = {"--use-env", "--run-path", "--virtual-local-rank"}
# Names of ours that many scripts have for options of their own.
SHARED = {"--backend", "--check", "--debug", "--resume", "--run-dir", "--runs"}


def hyphens(name: str) -> str:
    """An option's name as we write it: people mix hyphens and underscores, and torchrun takes both."""
    return name.replace("_", "-")


CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": hyphens, "max_content_width": 110}
PATHS = {"DIR": "dir", "PATH": "file"}  # of a setting's metavar, and what a shell calls it


def launcher_options() -> list[click.Parameter]:
    """The options that `run` and `plan` take, from the table of settings; torchrun's own names among them."""
    options: list[click.Parameter] = []
    for setting in SETTINGS:
        if setting.option:
            kind: dict[str, Any] = {"metavar": setting.metavar, "shell_complete": complete_setting}
            if setting.flag:
                kind = {"is_flag": True, "flag_value": "1"}
            text = f"{setting.help}  [{setting.name}, default {setting.default or 'none'}]"
            options.append(click.Option([setting.option, setting.name], default=None, help=text, **kind))
    options += [
        click.Option(["--standalone"], is_flag=True, help="A single node, whatever the environment says."),
        click.Option(["--env-file"], metavar="FILE", type=LocalPath(), help="Read this file instead of ./.env."),
    ]
    options += [click.Option([name], hidden=True) for name in RDZV]
    for names in TORCHRUN:
        flag = names[0] in TORCHRUN_FLAGS
        options.append(click.Option(names, hidden=True, callback=_refuse_torchruns, is_flag=flag, default=None))
    return options


def complete_setting(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """What a shell offers for a setting's value: the words among its values, and paths where it takes them."""
    from click.shell_completion import CompletionItem

    setting = BY_NAME[option.name or ""]
    paths = [CompletionItem(typed, kind) for word, kind in PATHS.items() if word in setting.metavar.split("|")]
    return paths + [CompletionItem(word) for word in setting.words if word.startswith(typed)]


def complete_program(context: click.Context, option: click.Parameter | None, typed: str) -> list[CompletionItem]:
    """What a shell offers for what is to be trained: a workload, or a file; behind a user's own program files alone."""
    from click.shell_completion import CompletionItem

    workloads = {} if context.params.get("words") else WORKLOADS
    names = [
        CompletionItem(name, help=workload.summary) for name, workload in workloads.items() if name.startswith(typed)
    ]
    return [CompletionItem(typed, "file"), *names]  # in this order: bash offers files only where no name fits


WORDS = click.Argument(
    ["words"],
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[WORKLOAD|SCRIPT|-m MODULE|--no-python PROGRAM] [ARGUMENTS]",
    shell_complete=complete_program,
)
FORMS = {
    "-m": click.Option(["-m", "--module"], is_flag=True, help="What follows is a module, as for `python -m`."),
    "--no-python": click.Option(
        ["--no-python"], is_flag=True, help="Start the program that follows as it is, without python in front."
    ),
}


def _refuse_torchruns(context: click.Context, option: click.Parameter, value: str | bool | None) -> None:
    if value and (instead := TORCHRUN[tuple(option.opts)]):
        raise LaunchError(f"{option.opts[0]} is an option of torchrun: {instead}.")


def misplaced(arguments: Sequence[str], program: str) -> list[str]:
    """A warning where a user's program is given what only the launcher is likely to know."""
    theirs = {name for names in TORCHRUN for name in names} | {*RDZV}
    ours = {option.opts[0] for option in launcher_options()} - SHARED - theirs
    names = (hyphens(word.partition("=")[0]) for word in arguments)
    if not (name := next((name for name in names if name in ours), "")):
        return []
    return [
        f"warning: {name} comes after {program}, so your script receives it, not the launcher. The launcher's options come "
        f"before the program: slipway run {name} … {program}"
    ]


class Launching(click.Command):
    """A command whose words end with a program and that program's own arguments, `-m MODULE` included."""

    allow_interspersed_args = False

    def __init__(self, name: str, *, params: Sequence[click.Parameter], **more: Any) -> None:
        super().__init__(name, params=[*params, *FORMS.values()], **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `-mMODULE` as Python does, and put `-m` or `--no-python` in front of the program among the words."""
        valued = {name for option in self.params if not getattr(option, "is_flag", True) for name in option.opts}
        before = ""
        for index, word in enumerate(args):
            if hyphens(before) not in valued:
                if re.match("-m.", word):
                    args = [*args[:index], "-m", "--", word[2:], *args[index + 1 :]]
                if not word.startswith("-") or word == "--" or re.match("-m.", word):
                    break  # what follows is the program and its own
            before = word
        rest = super().parse_args(ctx, args)
        forms = [word for word, option in FORMS.items() if ctx.params.pop(option.name or "")]
        if len(forms) > 1:
            raise click.UsageError("-m and --no-python exclude each other; type one of them.", ctx)
        if forms:
            ctx.params["words"] = (*forms, *ctx.params["words"])
        return rest

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context. Where a shell asks what may follow one of our workloads, that of the workload with our options."""
        context = super().make_context(info_name, args, parent, **extra)
        words = context.params.get("words")
        if not (context.resilient_parsing and words and words[0] in WORKLOADS):
            return context
        from slipway.options import WORKLOADS as KINDS  # torch-free
        from slipway.options.command import click_command

        own = click_command(KINDS[words[0]])
        own.params += [option for option in self.params if option is not WORDS]
        return own.make_context(words[0], list(words[1:]), parent, **extra)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Our options; none behind a user's own program, whose options nobody knows."""
        return [] if ctx.params.get("words") else super().shell_complete(ctx, incomplete)


def take_options(
    words: Sequence[str], options: Sequence[click.Parameter], command: str = "slipway run"
) -> tuple[dict[str, Any], list[str]]:
    """Take a command's options out of the words behind one of our workloads; the rest is the workload's."""
    parser = click.Command("", params=list(options), add_help_option=False)
    parser.context_settings = {**CONTEXT, "ignore_unknown_options": True, "allow_extra_args": True}
    context = parser.make_context(command, list(words))
    typed = (name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return {name: context.params[name] for name in typed}, context.args
