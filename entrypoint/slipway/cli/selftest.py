"""`slipway selftest`: does this image do what it promises, on the devices that are here?"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from slipway.cli.launching import CONTEXT
from slipway.protocol.errors import CODE_OF
from slipway.protocol.mistake import did_you_mean

if TYPE_CHECKING:  # the probes take as long to import as the rest of a launcher
    from slipway.check.selftest import SelftestRow, Timed
    from slipway.check.selftest_trial import Sandbox
    from slipway.process.tree import OwnProcesses


class StoppedError(BaseException):
    """Somebody stopped the selftest. No probe that catches exceptions catches this. `code`: the exit code to end with."""

    def __init__(self, number: int) -> None:
        from slipway.launch.attempt.stops import STOP_WORDS, read_signal

        kind, name = read_signal(number)
        super().__init__(name)
        self.code = CODE_OF[STOP_WORDS[kind]]


def run_selftest(as_json: bool, as_report: bool, only: str | None) -> None:
    """Test this image, or this checkout, on the devices of this node.

    Runs real jobs one after the other, from a matrix product to a deliberate hang. Takes minutes, needs no network, and
    keeps its files only if a test failed. On several nodes, start it on each: it tests only its own node.
    Include its output in a bug report.

    Exit code 0: all rows are ok or were skipped. 77: this node is unhealthy. 1: the image or the checkout is broken. 78: the
    configuration is wrong.
    """
    from slipway.check.devices import describe_links
    from slipway.check.finding import terminal_width
    from slipway.check.selftest import ROWS, report_json, report_lines, report_table
    from slipway.check.selftest_trial import Sandbox, count_processes, environment_of_jobs
    from slipway.launch.resolve.devices import read_devices
    from slipway.launch.resolve.host import read_host
    from slipway.launch.resolve.packages import read_versions
    from slipway.process.tree import OwnProcesses

    if as_json and as_report:
        raise click.UsageError("--json is for programs and --report for an issue; give one of them.")
    chosen = choose_rows(ROWS, only)
    environ = environment_of_jobs(os.environ)
    host, devices = read_host(environ), read_devices(environ)
    processes = count_processes(environ, devices, host)
    try:
        own = OwnProcesses()
        with private_folder(own) as folder:
            timed = try_rows(chosen, Sandbox(folder, environ, devices, host, processes, own))
            if not any(result.code for result, _ in timed):
                shutil.rmtree(folder)
    except StoppedError as stopped:
        click.echo(f"slipway: selftest: {stopped}: stopped; no files or processes were left", err=True)
        sys.exit(stopped.code)
    report = report_json(timed, read_versions(host, devices), describe_links(devices))
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        names = (socket.gethostname(), str(folder))
        lines = report_table(report, names) if as_report else report_lines(report, True, terminal_width())
        click.echo("\n".join(lines))
    if report["code"]:
        click.echo(f"slipway: selftest: the run directories of the jobs are in {folder}", err=True)
    sys.exit(report["code"])


def choose_rows(rows: tuple["SelftestRow", ...], only: str | None) -> tuple["SelftestRow", ...]:
    """The rows that were asked for, in the table's order. Raises click.BadParameter for a name that is none."""
    names = [name.strip() for name in only.split(",")] if only else [row.name for row in rows]
    known = [row.name for row in rows]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(
            f"{unknown[0]!r} is not a row; type some of {','.join(known)}.{did_you_mean(unknown[0], known)}",
            param_hint="--only",
        )
    return tuple(row for row in rows if row.name in names)


def try_rows(rows: tuple["SelftestRow", ...], sandbox: "Sandbox") -> list["Timed"]:
    """One row after the other, with its progress on stderr."""
    from slipway.check.finding import broken, skipped
    from slipway.launch.attempt.terminal import say

    timed: list[Timed] = []
    for number, row in enumerate(rows, 1):
        say(f"selftest {number}/{len(rows)}: {row.name}: {row.proves}")
        begin = time.monotonic()
        if reason := row.lacks(sandbox):
            results = [skipped(row.name, reason)]
        else:
            try:
                results = list(row.look(row.name, sandbox))
            except Exception as error:  # one that breaks hides no other
                results = [broken(row.name, f"{type(error).__name__}: {error}")]
        seconds = time.monotonic() - begin
        timed += [(result, seconds / len(results)) for result in results]
        for result in results:
            say(f"  {result.level} after {seconds:.0f} s: {result.found}")
    return timed


@contextlib.contextmanager
def private_folder(own: "OwnProcesses", prefix: str = "slipway-selftest-") -> Iterator[Path]:
    """A folder for all jobs among the temporary files. At a signal that stops a job, StoppedError ends the block.

    No process that was started in it survives, of `own`, and no folder where somebody stopped it.
    """
    from slipway.launch.attempt.stops import catch_stops, turn_deaf
    from slipway.process.tree import adopt_orphans

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        turn_deaf()  # a second one would interrupt the tidying
        raise StoppedError(number)

    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    before = catch_stops(stop)
    try:
        yield folder
    except BaseException:
        own.end()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        turn_deaf()
        own.end()
        for number, handler in before.items():
            signal.signal(number, handler)


JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON: exit code, machine, and the rows.")
REPORT = click.Option(
    ["--report", "as_report"],
    is_flag=True,
    help='Print a table for the issue form "It ran here": machine, versions and rows, without host names.',
)
ONLY = click.Option(["--only"], metavar="ROW,…", help="Run only these rows; separate names with commas.")
selftest = click.Command(
    "selftest",
    callback=run_selftest,
    params=[JSON, REPORT, ONLY],
    help=run_selftest.__doc__,
    epilog="\b\nExample: slipway selftest --only products,gpt",
    context_settings=CONTEXT,
)
