"""Commands that show what there is: `slipway workloads`, `slipway completion` for the shell, and `slipway report`, a page about
one or several runs.
"""

import json
import os
from pathlib import Path

import click

from slipway.cli.runs import RUNS, complete_run, mention, named_run, warn_if_fleeting
from slipway.inspect.report_run import RECORDS, read_run
from slipway.launch.attempt.terminal import short_path
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.options.paths import LocalPath, RunPath
from slipway.protocol.errors import LaunchError, code_of, told_if_unreadable
from slipway.store.address import is_store

NO_DATA = "none"
SHELLS = ("bash", "zsh", "fish")  # that click can complete in


@click.command(epilog="\b\nExample: slipway workloads --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: name, summary, data and help of each.")
def workloads(as_json: bool) -> None:
    """List the workloads: what each trains, and on which data."""
    if as_json:
        rows = [
            {"name": name, "summary": workload.summary, "data": workload.data, "help": f"slipway {name} --help"}
            for name, workload in WORKLOADS.items()
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    width = max(map(len, WORKLOADS))
    for name, workload in WORKLOADS.items():
        click.echo(f"{name:<{width}}  {workload.summary}; data: {workload.data or NO_DATA}")
    click.echo(
        "\nOptions of one: slipway NAME --help. Your own program: slipway path/to/script.py or slipway -m module."
    )


def own_shell() -> str:
    """The shell of this user, where there is a script for it; else bash."""
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in SHELLS else SHELLS[0]


@click.command(
    epilog='\b\nExample: eval "$(slipway completion bash)"\n'
    "Example: slipway completion fish > ~/.config/fish/completions/slipway.fish"
)
@click.argument("shell", type=click.Choice(SHELLS), default=own_shell, metavar="[bash|zsh|fish]")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell script for the completion of commands, workloads, options, their values, and names of runs.

    By default it is for the shell in SHELL. To load it, put the line with eval into ~/.bashrc, or for zsh into ~/.zshrc
    after compinit.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind  # click has those of SHELLS
    click.echo(kind(context.find_root().command, {}, "slipway", "_SLIPWAY_COMPLETE").source())


@click.command("report", epilog="\b\nExample: slipway report gpt-20260101-120000 gpt-20260102-090000 --out ab.html")
@click.argument("names", nargs=-1, metavar="[RUN]...", type=RunPath(), shell_complete=complete_run)
@RUNS
@click.option("--out", type=LocalPath(path_type=Path, dir_okay=False), help="File to write.  [RUN/report.html]")
def report_runs(names: tuple[str, ...], runs: str | None, out: Path | None) -> None:
    """Write one HTML page about RUNs: curves, settings, attempts, throughput. The page needs no network.

    A RUN is a path or a name in the folder of runs, by default the newest. Several RUNs are compared on one page. This
    page, or that of a run in a store (s3://bucket/runs/NAME), is written to report.html in the current folder unless
    --out is set.
    """
    from slipway.inspect.report import NotOursError, make_page, write_page

    paths = dict.fromkeys(_find_run(name, runs).resolve() for name in names or ("",))
    found = [read_run(path) for path in paths]
    mention(f"{run.metrics.unread}, so the page has no curves of it" for run in found if run.metrics.unread)
    local = len(found) == 1 and not any(map(is_store, names))
    target = out or (found[0].path if local else Path()) / "report.html"
    try:
        write_page(target, make_page(found))
    except NotOursError as error:
        raise LaunchError(f"{error} Name another place with --out.") from None
    except OSError as error:
        raise LaunchError(
            f"The page cannot be written: {error}. Name another place with --out.", code_of(error)
        ) from None
    click.echo(short_path(target.absolute()))
    warn_if_fleeting(target)


@told_if_unreadable("Run this command as its owner.")
def _find_run(name: str, runs: str | None) -> Path:
    """The directory of a run; also of one that was copied without the launcher's files. Raises LaunchError."""
    try:
        return named_run(name, runs)
    except LaunchError:
        path = Path(name)
        if not name or not path.is_dir():
            raise
        if any((path / record).is_file() for record in RECORDS):
            return path
    raise LaunchError(f"{name} is not a run: it contains none of {', '.join(RECORDS)}.")
