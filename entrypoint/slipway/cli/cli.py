"""The command line: `slipway run`, `plan`, `sample`, `status`, `stop`; a workload's name or a script alone means `run`."""

import contextlib
import importlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from slipway import __version__
from slipway.cli.arguments import foresee_interfaces, options_json, options_lines, read_job
from slipway.cli.launching import CONTEXT, WORDS, Launching, complete_program, launcher_options
from slipway.launch.resolve.catalog import WORKLOADS, is_program, unknown_name
from slipway.launch.resolve.container_checks import require_writable, results_folder
from slipway.launch.resolve.host import name_user
from slipway.launch.resolve.interface_names import absent_interfaces
from slipway.launch.resolve.packages import missing, require_packages
from slipway.launch.resolve.plan import plan_json, plan_lines, resolved_values
from slipway.launch.resolve.runtimes import detect_runtime
from slipway.launch.resolve.settings import TOPOLOGICAL
from slipway.launch.resolve.spot import SETTING, spot_value
from slipway.launch.resolve.starters import instead, starter
from slipway.launch.run_directory.run import AlreadyFinishedError, choose_run
from slipway.options.help import WholeHelp
from slipway.protocol.errors import CONFIGURATION, EXITS, FAILED, LaunchError
from slipway.protocol.printable import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Commands beside `run` and `plan`: their modules are imported when they are typed, so that a start need not wait for them.
BESIDE = {
    "check": "slipway.cli.check:check",
    "completion": "slipway.cli.reports:completion",
    "data": "slipway.cli.data:data",
    "demo": "slipway.cli.demo:demo",
    "eval": "slipway.cli.results:evaluate_run",
    "export": "slipway.cli.results:export",
    "logs": "slipway.cli.logs:logs",
    "prove": "slipway.cli.prove:prove",
    "render": "slipway.render:render",
    "report": "slipway.cli.reports:report_runs",
    "runs": "slipway.cli.runs:list_all",
    "sample": "slipway.cli.results:sample_run",
    "selftest": "slipway.cli.selftest:selftest",
    "stacks": "slipway.cli.stacks:stacks",
    "status": "slipway.cli.runs:status",
    "stop": "slipway.cli.runs:stop_run",
    "trace": "slipway.cli.trace:trace",
    "workloads": "slipway.cli.reports:workloads",
}
TRAINS = "Workloads: " + "; ".join(f"{name}, {workload.summary}" for name, workload in WORKLOADS.items()) + "."
EXIT_CODES = "Exit codes: " + "; ".join(f"{code} {row.meaning}" for code, row in EXITS.items()) + "."


def show_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Print the version, and which image this is."""
    if wanted:
        image = os.environ.get("SLIPWAY_IMAGE")
        click.echo(f"slipway, version {__version__}{f' (image {image})' if image else ''}")
        context.exit()


class Commands(WholeHelp):
    """The command group; https://click.palletsprojects.com/en/stable/complex/#lazily-loading-subcommands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted([*self.commands, *BESIDE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in BESIDE:
            return super().get_command(ctx, cmd_name)
        module, _, name = BESIDE[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant, also where a shell asks what may follow a workload or a script."""
        return super().resolve_command(ctx, with_run(args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """What may stand first: a workload, a script, a command."""
        return [*complete_program(ctx, None, incomplete), *super().shell_complete(ctx, incomplete)]


@click.group(
    cls=Commands, context_settings=CONTEXT, epilog=f"{TRAINS}\n\n{EXIT_CODES}\n\n\b\nExample: slipway gpt --steps 200"
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print the version."
)
def slipway() -> None:
    """Launch PyTorch data-parallel training the same way everywhere.

    `slipway gpt` is short for `slipway run gpt`, and `slipway train.py` for `slipway run train.py`. Any other program
    (`slipway nvidia-smi`) is executed as it is, without the launcher.
    """


LAUNCHER_OPTIONS = launcher_options()


def _command(name: str, function: Any, params: Sequence[click.Parameter], epilog: str) -> None:
    slipway.add_command(
        Launching(
            name,
            callback=function,
            params=[WORDS, *params, *LAUNCHER_OPTIONS],
            help=function.__doc__,
            epilog=epilog,
            context_settings=CONTEXT,
        )
    )


def run(words: tuple[str, ...], **options: Any) -> None:
    """Train a workload or script: detect this node's rank, start torchrun, and handle shutdown and restarts."""
    job = read_job(words, options)
    wanted = job.options.packages() if job.options else {}
    require_packages(job.plan.workload.name, job.plan.workload.builtin, wanted=wanted)
    if job.sources.parsed("SLIPWAY_CHECK"):
        from slipway.cli.check import check_first

        if code := check_first(job):
            sys.exit(code)
    from slipway.launch.attempt.stops import turn_deaf  # what supervises is of use to no other command
    from slipway.launch.job import run_job

    code = run_job(job)
    turn_deaf()
    sys.exit(code)


def plan(words: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Show the values with their sources and what they override, and the torchrun command. Starts nothing."""
    if words and words[0] in WORKLOADS:
        as_json, everything = as_json or "--json" in words, everything or "--all" in words
        words = tuple(word for word in words if word not in ("--json", "--all"))
    job = read_job(words, options)
    require_writable(job.host, results_folder(job.sources))
    if job.plan.topology.rank == 0:
        with contextlib.suppress(AlreadyFinishedError):  # a finished run has a plan, too
            choose_run(job.plan, job.sources, time.time())  # creates nothing, but fails where run would
    made = foresee_interfaces(job)
    values = resolved_values(job.plan.topology, job.sources)
    values[SETTING] = spot_value(job.sources, job.host.dmi)
    if as_json:
        click.echo(json.dumps(plan_json(made, values, options_json(job)), indent=1))
    else:
        if absent := absent_interfaces(job):
            click.echo(f"warning: `slipway run` ends with {CONFIGURATION} here. {absent}")
        for line in job.sources.ignored:
            click.echo(line)
        rows, more = options_lines(job), ""
        if not everything:
            count = len(values) + len(rows)
            values = {name: value for name, value in values.items() if name in DECISIVE or not value.is_default}
            rows = [row for row in rows if row.partition(" ")[0] in DECISIVE or not row.endswith("  default")]
            if left := count - len(values) - len(rows):
                more = f"{left} more settings and options have their defaults; --all shows them"
        click.echo("\n".join(plan_lines(made, values, rows, more)))


# What `slipway plan` shows of the defaults: what a job is, and how long it takes.
DECISIVE = (
    *TOPOLOGICAL, "SLIPWAY_BACKEND", "SLIPWAY_RUNS", "SLIPWAY_RESUME",
    "preset", "model", "dataset", "steps", "epochs", "batch-size", "lr", "precision", "save-every",
)  # fmt: skip
_EXAMPLE = "\b\nExample: slipway run --nproc-per-node 2 gpt --preset tiny --steps 200"
_command("run", run, [], _EXAMPLE)
JSON = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print JSON: topology, values and options with their sources, torchrun."
)
ALL = click.Option(
    ["--all", "everything"], is_flag=True, help="Also show the settings and options that have their defaults."
)
_command("plan", plan, [JSON, ALL], _EXAMPLE.replace("run", "plan"))


def with_run(words: list[str]) -> list[str]:
    """Return the words with `run` in front where the first means a workload or a program of the user's."""
    known = words[0] in slipway.commands or words[0] in BESIDE
    return ["run", *words] if not known and (words[0] in WORKLOADS or is_program(words[0])) else words


def understand(words: list[str]) -> list[str]:
    """The words, which begin with a command or an option; an executable is exec'ed. Raises LaunchError (78) for anything else."""
    words = with_run(words) if words else words
    known = {*slipway.commands, *BESIDE}
    if not words or words[0] in known or words[0].startswith("-"):
        return words
    if program := shutil.which(words[0]):
        if starter(words) and any(word.endswith(".py") for word in words) and (line := instead(words)):
            click.echo(f"slipway: {words[0]} is executed as it is, without the launcher. With it: {line}", err=True)
        environ = {**os.environ, **name_user(os.environ)}  # torch asks for the name
        os.execve(program, words, environ)  # noqa: S606  # what the user typed is what is started
    from slipway.cli.synonyms import COMMANDS

    raise unknown_name(words[0], known, detect_runtime(os.environ), COMMANDS.get(words[0].lower(), ""))


@contextlib.contextmanager
def told_what_is_missing(command: str) -> Iterator[None]:
    """Raise LaunchError instead where a command imports what only the extra `train` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "slipway", *sys.stdlib_module_names):
            raise
        raise missing(f"slipway {command}", [name]) from None


def main() -> None:
    """Entry point of the console script; ends with an exit code of the table in protocol/errors.py, and tells the pod."""
    open_streams()
    try:
        words = understand(sys.argv[1:]) or ["--help"]
        asks = {"--help", "-h"} & {*words} and not any(map(is_program, words))
        if sys.flags.optimize > 1 and (asks or words[0] in BESIDE):  # -OO leaves out the docstrings, which are the help
            argv = [sys.executable, "-P", "-m", "slipway", *sys.argv[1:]]
            os.execve(sys.executable, argv, {**os.environ, "PYTHONOPTIMIZE": "1"})  # noqa: S606
        colour = False if os.environ.get("NO_COLOR") else None  # None: on terminals (https://no-color.org)
        with told_what_is_missing(words[0]):
            sys.exit(slipway.main(words, prog_name="slipway", standalone_mode=False, color=colour))
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            from slipway.cli.synonyms import explain

            error = explain(error, sys.argv[1:], os.environ)
        code, said, show = error.exit_code, error.format_message(), partial(_show, error)
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            show = partial(click.echo, said, err=True)
    except click.Abort:
        code, said, show = FAILED, "aborted", partial(click.echo, "Aborted!", err=True)
    except LaunchError as error:
        code, said, show = (
            error.code,
            str(error),
            partial(click.echo, _fold("slipway: ", printable(str(error))), err=True),
        )
    except Exception as error:
        _tell_pod(FAILED, f"{type(error).__name__}: {error}")
        raise
    with contextlib.suppress(OSError):  # a stderr that is closed or full must not change the exit code
        show()
    _tell_pod(code, said)
    sys.exit(code)


def _show(error: click.ClickException) -> None:
    """What click prints, with its last line folded."""
    with io.StringIO() as file:
        error.show(file)
        *usage, said = file.getvalue().rstrip("\n").split("\n")
    click.echo("\n".join([*usage, _fold("Error: ", said.removeprefix("Error: "))]), err=True)


def _fold(prefix: str, text: str) -> str:
    """An error as a terminal shows it; elsewhere it is one line, as it may be searched for."""
    if not os.isatty(2):
        return prefix + text
    from slipway.launch.attempt.terminal import columns_of, fold_error

    return fold_error(prefix, text, columns_of(2) - 1)


# What people type beside a job, by `kubectl exec` in its pod, is any other command: the pod's last words are the job's.
JOBS = {"run", "check", "data", "export", "selftest"}


def _tell_pod(code: int, said: str) -> None:
    if sys.argv[1:2] and (sys.argv[1] in JOBS or sys.argv[1] not in {*slipway.commands, *BESIDE}):
        from slipway.launch.closing import tell_pod

        tell_pod(code, said)


def open_streams() -> None:
    """Give a launcher that was started with stdout or stderr closed, as some daemons do, a place to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
