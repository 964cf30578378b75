"""Commands for runs from another shell or container that sees their directory: `slipway runs`, `status`, `stop`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipway.inspect.runs import list_runs, table_lines
from slipway.inspect.status import Status, find_run, read_status, status_json, status_lines
from slipway.inspect.stored import fetch_run
from slipway.launch.attempt.stops import TICK, ask_to_stop
from slipway.launch.attempt.terminal import columns_of, fold
from slipway.launch.resolve.container_checks import default_runs
from slipway.launch.resolve.host import own_container, read_host
from slipway.launch.resolve.sources import read_sources
from slipway.launch.run_directory.directory import RunDirectory, list_run_directories, odd_records
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.options.numbers import Whole
from slipway.options.paths import LocalPath, LocalRun, RunPath
from slipway.protocol.errors import FAILED, FINISHED, LaunchError, code_of, told_if_unreadable
from slipway.protocol.outcomes import GOOD
from slipway.protocol.printable import counted, printable
from slipway.store.address import is_store

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WATCH = 2.0  # s between updates of --watch
CLEAR = "\x1b[H\x1b[2J"
LABEL = 14  # columns of a row's label

RUNS = click.option(
    "--runs",
    metavar="DIR",
    type=LocalPath(file_okay=False),
    help="Folder that contains the runs.  [SLIPWAY_RUNS, default runs]",
)


def chosen_runs_folder(runs: str | None) -> Path:
    """The folder of runs, from the same places as for `slipway run`; `runs` is what --runs says. Raises LaunchError."""
    host = read_host(dict(os.environ))
    sources = read_sources({"SLIPWAY_RUNS": runs}, {"SLIPWAY_RUNS": default_runs(host)}, only=("SLIPWAY_RUNS",))
    if (claim := sources.claim("SLIPWAY_RUNS")) in sources.from_file("SLIPWAY_RUNS"):
        mention([f"runs of {claim.value}, from {claim.source}"])
    return Path(sources.value("SLIPWAY_RUNS"))


def named_run(run: str, runs: str | None) -> Path:
    """The run of this path or name in the folder of runs, by default the newest. Raises LaunchError if there is none."""
    if is_store(run):
        return fetch_run(run, snapshots=False, say=mention)
    folder = chosen_runs_folder(runs)
    if not run:
        mention(odd_records(folder))
    return find_run(run, folder)


def mention(lines: Iterable[str]) -> None:
    """Say on stderr what is no answer to what was asked."""
    for line in lines:
        click.echo(f"slipway: {printable(line)}", err=True)


def warn_if_fleeting(path: Path) -> None:
    """Say if what was written to a path is lost with this container, or else where it is outside of it."""
    from slipway.check.examination import look_at_host
    from slipway.launch.resolve.container_checks import fleeting_file, seen_outside

    host = look_at_host(os.environ)[0]
    mention(filter(None, [fleeting_file(host, path) or seen_outside(host, path)]))


@told_if_unreadable("Run this command as its owner.")
def named_folder(run: str, runs: str | None) -> Path:
    """The same, for what needs a run's snapshots: also a folder that the launcher did not make. Raises LaunchError."""
    if is_store(run):
        return fetch_run(run, snapshots=True, say=mention)
    return Path(run) if Path(run).is_dir() else named_run(run, runs)


def complete_run(context: click.Context, argument: click.Parameter, typed: str) -> list[CompletionItem]:
    """What a shell offers for a run: the names of those in the folder of runs, else folders."""
    from click.shell_completion import CompletionItem

    names: list[str] = []
    with contextlib.suppress(LaunchError):  # nobody wants to read of a wrong setting at the Tab key
        names = [run.path.name for run in list_run_directories(chosen_runs_folder(context.params.get("runs")))]
    return [CompletionItem(typed, "dir"), *(CompletionItem(name) for name in names if name.startswith(typed))]


@click.command(epilog="\b\nExample: slipway status gpt-20260101-120000")
@click.argument("run", default="", type=RunPath(), shell_complete=complete_run)
@RUNS
@click.option("--json", "as_json", is_flag=True, help="Print JSON: alive, holders, ranks with their steps, outcome.")
@click.option("--watch", is_flag=True, help="Repeat every two seconds until the run ends.")
def status(run: str, runs: str | None, as_json: bool, watch: bool) -> None:
    """Show the state of a RUN.

    RUN is a path, a name in the folder of runs or an address in a store; by default the newest run that runs here, or
    else the newest.
    """
    if watch and as_json:
        raise click.UsageError("--watch is for people; in programs, run --json repeatedly instead.")
    path = named_run(run, runs)
    mention(RunDirectory(path).odd_files())
    if watch:
        with contextlib.suppress(KeyboardInterrupt):  # who watches may stop watching
            watch_run(
                lambda: read_status(fetch_run(run, snapshots=False) if is_store(run) else path),
                click.echo,
                time.sleep,
                clear=sys.stdout.isatty(),
            )
        return
    found = read_status(path)
    click.echo(json.dumps(status_json(found), indent=1) if as_json else shown(found))


def watch_run(
    read: Callable[[], Status], echo: Callable[[str], object], wait: Callable[[float], object], *, clear: bool
) -> None:
    """Show a run until it ends: on a terminal in place of what was shown before (`clear`), elsewhere where it changed."""
    before = ""
    while True:
        found = read()
        text = shown(found)
        if text != before:
            echo(f"{CLEAR}{text}" if clear else text)
        if not found.alive:
            return
        before = text
        wait(WATCH)


def shown(found: Status) -> str:
    """A run's status for people, on a terminal with its rows broken between words."""
    lines = [printable(line) for line in status_lines(found)]
    if not sys.stdout.isatty():
        return "\n".join(lines)
    columns = columns_of(sys.stdout.fileno()) - 1
    return "\n".join(fold(line[:LABEL], line[LABEL:], columns) if line[2:3].isalpha() else line for line in lines)


@click.command("runs", epilog="\b\nExample: slipway runs --last 50")
@RUNS
@click.option("--last", type=Whole(1), default=20, show_default=True, help="Number of runs to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: run, workload, started, step, alive, state of each.")
def list_all(runs: str | None, last: int, as_json: bool) -> None:
    """List the runs in the folder of runs, newest first: start time, newest step, state or outcome."""
    folder = chosen_runs_folder(runs)
    mention(odd_records(folder))
    rows, known = list_runs(folder, last)
    if as_json:
        click.echo(json.dumps([row.as_json() for row in rows], indent=1))
        return
    if not rows:
        raise LaunchError(
            f"There is no run in {folder}. Name another folder with --runs DIR, or start one: slipway run"
        )
    click.echo("\n".join(map(printable, table_lines(rows))))
    if known > len(rows):
        mention([f"not shown: {counted(known - len(rows), 'older run')}; for all type slipway runs --last {known}"])


@click.command("stop", epilog="\b\nExample: slipway stop gpt-20260101-120000 --wait")
@click.argument("run", type=LocalRun(), default="", metavar="RUN", shell_complete=complete_run)
@RUNS
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the run has ended; exit with 0 if it was stopped, otherwise with its exit code.",
)
def stop_run(run: str, runs: str | None, wait: bool) -> None:
    """Stop a RUN for good, with a snapshot, like Ctrl-C: its launcher ends with 79.

    RUN is a path or a name in the folder of runs. If you repeat the command after 5 seconds, the run ends at once.
    """
    if not run:  # elsewhere that is the newest
        newest = None
        with contextlib.suppress(LaunchError):  # there is none
            newest = named_run("", runs)
        if newest and read_status(newest).alive:
            theirs = sorted(filter(None, map(str, RunDirectory(newest).containers)))
            inside = (
                f"docker exec {theirs[0][:12]} " if own_container() and theirs and own_container() not in theirs else ""
            )
            raise LaunchError(
                f"RUN is missing. To stop the one that runs, type: {inside}slipway stop {shlex.quote(newest.name)}"
            )
        raise LaunchError("RUN is missing. Name the run to stop; `slipway runs` lists them.")
    path = named_run(run, runs)
    found = read_status(path)
    if not found.alive:
        code = found.outcome.code
        how = "its launcher is gone" if code is None else f"it ended with exit code {code}"
        raise LaunchError(f"{path} is not running: {how}. For details: slipway status {shlex.quote(str(path))}")
    scripts = {node: holder.since for node, holder in zip(found.launchers, found.holders, strict=True) if holder.script}
    try:
        for folder in [node.path for node in scripts] or [path]:  # a script without launcher looks at the flag itself
            ask_to_stop(folder)
    except OSError as error:
        holder = found.holders[0]
        raise LaunchError(
            f"The request cannot be written: {error}. On {holder.host} type kill -INT {holder.pid}.", code_of(error)
        ) from None
    click.echo(f"asked {found.holders[0].text} to stop {path}")
    if (container := own_container()) and container in RunDirectory(path).containers:
        # From inside nobody can see whether it has one, and for Docker each exit code but 0 is a failure.
        click.echo(
            f"if this container has a restart policy, Docker starts it again and the run continues: docker stop {container[:12]}"
        )
    if wait:
        sys.exit(_wait_for_end(path, scripts))


def _wait_for_end(path: Path, scripts: Mapping[NodeDirectory, float]) -> int:
    """Wait for the end of a run, tell it, and return 0 where it ended as asked, else its exit code. `scripts`: the folders of
    those that run it without launcher, and since when; rank 0 says how they ended.
    """
    while (found := read_status(path)).alive:
        time.sleep(TICK)
    for node, since in scripts.items():
        end = node.outcomes([0]).get(0, {})
        told = isinstance(time_of_end := end.get("time"), float) and time_of_end >= since  # else of an earlier start
        click.echo(printable(f"{path}: {end.get('message') if told else 'ended without a report'}"))
        return FINISHED if told and str(end.get("outcome")) in GOOD else FAILED
    click.echo("\n".join(map(printable, status_lines(found))))
    if found.outcome.word in GOOD:
        return FINISHED
    return FAILED if found.outcome.code is None else found.outcome.code
