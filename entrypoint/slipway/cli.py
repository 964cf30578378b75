"""The command line: `slipway run`, `plan`, `sample`; a workload's name or a script alone means `run`."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from slipway import __version__
from slipway.launch.catalog import WORKLOADS, find_workload, is_program, unknown_name
from slipway.launch.devices import read_devices
from slipway.launch.errors import EXITS, LaunchError
from slipway.launch.host import read_host
from slipway.launch.job import Job, run_job
from slipway.launch.plan import make_plan, plan_json, plan_lines, resolved_values
from slipway.launch.reach import is_loopback, listen
from slipway.launch.settings import SETTINGS, Sources, read_env_file
from slipway.launch.topology import resolve_topology

RDZV = {
    "--rdzv-backend": "the rendezvous is always static; nothing replaces it",
    "--rdzv-endpoint": "use --master-addr HOST and --master-port PORT",
    "--rdzv-id": "use --run-dir DIR to name the run",
    "--rdzv-conf": "nothing replaces it",
}
EXIT_CODES = "Exit codes: " + "; ".join(f"{code} {row.meaning}" for code, row in EXITS.items()) + "."


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


CONTEXT = {"help_option_names": ["-h", "--help"], "token_normalize_func": _hyphens, "max_content_width": 110}


@click.group(context_settings=CONTEXT, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="slipway")
def slipway() -> None:
    """Launch PyTorch data-parallel training the same way everywhere.

    `slipway gpt` is short for `slipway run gpt`, `slipway train.py` for `slipway run train.py`, and any other program is
    started as it is.
    """


def _refuse_rdzv(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = f"--{_hyphens(option.name or '')}"
        raise LaunchError(f"{name} is torchrun's: {RDZV[name]}.")


def launcher_options() -> list[click.Parameter]:
    """The options that `run` and `plan` take, from the table of settings; torchrun's own names among them."""
    options: list[click.Parameter] = [
        click.Option(
            [setting.option, setting.name],
            is_flag=setting.flag,
            flag_value="1" if setting.flag else None,
            default=None,
            metavar=None if setting.flag else setting.metavar,
            help=f"{setting.help}  [{setting.name}, default {setting.default or 'none'}]",
        )
        for setting in SETTINGS
        if setting.option
    ]
    options += [
        click.Option(["--standalone"], is_flag=True, help="A single node, whatever the environment says."),
        click.Option(["--env-file"], metavar="FILE", help="Read this file instead of ./.env."),
    ]
    return options + [click.Option([name], hidden=True, callback=_refuse_rdzv) for name in RDZV]


def _read_options(words: Sequence[str], extra: Sequence[click.Parameter] = ()) -> tuple[dict[str, Any], list[str]]:
    """Take the launcher's options out of the words behind one of our workloads; the rest is the workload's."""
    parser = click.Command("", params=[*launcher_options(), *extra], add_help_option=False)
    parser.context_settings = {**CONTEXT, "ignore_unknown_options": True, "allow_extra_args": True}
    context = parser.make_context("slipway run", list(words))
    return {name: value for name, value in context.params.items() if value is not None}, context.args


def read_job(words: Sequence[str], options: dict[str, Any]) -> Job:
    """From the command line and this machine to a job. Raises LaunchError or click.UsageError; starts nothing."""
    words = list(words)
    if words and words[0] in WORKLOADS:
        late, rest = _read_options(words[1:])
        options, words = options | {name: value for name, value in late.items() if value}, [words[0], *rest]
    sources = _sources(options)
    words = words or shlex.split(sources.value("WORKLOAD"))
    workload, arguments = find_workload(words)
    if workload.own:
        from slipway.train.options import parse  # torch-free; a mistake is told before anything starts

        parse(workload.name, arguments)
    environ = dict(os.environ)
    devices = read_devices(environ)
    topology = resolve_topology(sources, devices, read_host(environ))
    if topology.backend == "mpi":
        _require_mpi()
    if topology.rank == 0:
        listen(topology.master_port, loopback=is_loopback(topology.master_addr)).close()  # in use? then say by whom
    data = hash_stdlib() if workload.embedded_text and topology.nodes > 1 else None
    return Job(make_plan(topology, workload, arguments, sources), sources, devices, environ, data)


def hash_stdlib() -> str:
    """The hash of the text that gpt is trained on, for the other nodes to compare."""
    from slipway.train.text import read_stdlib

    return read_stdlib().sha256


def _sources(options: dict[str, Any]) -> Sources:
    names = {setting.name for setting in SETTINGS}
    given = {name: str(value) for name, value in options.items() if name in names and value is not None}
    if options.get("standalone"):
        given |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    path = Path(options.get("env_file") or ".env")
    if options.get("env_file") and not path.is_file():
        raise LaunchError(f"--env-file {path}: there is no such file.")
    env_file = read_env_file(path) if path.is_file() else {}
    return Sources(given, dict(os.environ), env_file, path.name)


def _require_mpi() -> None:
    asked = "import sys, torch.distributed as d; sys.exit(not d.is_mpi_available())"
    if subprocess.run([sys.executable, "-c", asked], check=False).returncode:
        raise LaunchError(
            "This torch was built without the mpi backend. Use --backend nccl (GPUs) or gloo (CPUs); to start from mpirun, "
            "start one launcher per process: `mpirun -n 8 -x MASTER_ADDR=HOST slipway run …` uses nccl or gloo between them."
        )


RUN_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}
WORDS = click.Argument(
    ["words"], nargs=-1, type=click.UNPROCESSED, metavar="[WORKLOAD|SCRIPT.py|-m MODULE] [ARGUMENTS]"
)


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
            if not word.startswith("-") and (not before.startswith("--") or "=" in before or _hyphens(before) in flags):
                break  # the program; what follows is its own
            before = word
        return super().parse_args(ctx, args)


def _command(name: str, function: Any, params: Sequence[click.Parameter], epilog: str) -> None:
    slipway.add_command(
        Launching(
            name,
            callback=function,
            params=[WORDS, *params, *launcher_options()],
            help=function.__doc__,
            epilog=epilog,
            context_settings={**CONTEXT, **RUN_SETTINGS},
        )
    )


def run(words: tuple[str, ...], **options: Any) -> None:
    """Train: find this node's place in the job, start torchrun for the workload, own how it ends."""
    sys.exit(run_job(read_job(words, options)))


def plan(words: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show every value, who gave it and whom it overruled, and the torchrun command. Starts nothing."""
    if words and words[0] in WORKLOADS and "--json" in words:
        as_json, words = True, tuple(word for word in words if word != "--json")
    job = read_job(words, options)
    values = resolved_values(job.plan.topology, job.sources)
    if as_json:
        click.echo(json.dumps(plan_json(job.plan, values), indent=1))
    else:
        click.echo("\n".join(plan_lines(job.plan, values)))


_EXAMPLE = "Example: slipway run --nproc-per-node 2 gpt --preset tiny --steps 200"
_command("run", run, [], _EXAMPLE)
JSON = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print JSON: topology, values with their sources, torchrun."
)
_command("plan", plan, [JSON], _EXAMPLE.replace("run", "plan"))


@slipway.command(epilog='Example: slipway sample runs/gpt-20260101-120000 --prompt "def "')
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", default="def ", show_default=True, help="The text to go on from.")
@click.option("--tokens", type=click.IntRange(1, 100_000), default=400, show_default=True, help="How many to add.")
@click.option("--temperature", type=click.FloatRange(0), default=0.8, show_default=True, help="0 takes the likeliest.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same text.")
def sample(run: Path, prompt: str, tokens: int, temperature: float, seed: int) -> None:
    """Continue a text with the newest snapshot of a gpt RUN."""
    from slipway.train.sample import sample as continue_text

    try:
        click.echo(continue_text(run, prompt, tokens, temperature, seed))
    except ValueError as error:
        raise LaunchError(str(error)) from None


def understand(words: list[str]) -> list[str]:
    """Return the words with `run` in front where the first means a workload or a program of the user's.

    An executable is exec'ed here and now. Raises LaunchError (78) for a first word that means nothing.
    """
    if not words or words[0] in slipway.commands or (words[0].startswith("-") and words[0] != "-m"):
        return words
    if words[0] in WORKLOADS or is_program(words[0]):
        return ["run", *words]
    if program := shutil.which(words[0]):
        os.execv(program, words)  # noqa: S606  # what the user typed is what is started
    raise unknown_name(words[0], [*slipway.commands, *WORKLOADS])


def main() -> None:
    """Entry point of the console script; ends with an exit code of the table in launch/errors.py."""
    try:
        slipway.main(understand(sys.argv[1:]) or ["--help"], prog_name="slipway")
    except LaunchError as error:
        with contextlib.suppress(OSError):
            click.echo(f"slipway: {error}", err=True)
        sys.exit(error.code)
