"""`slipway logs`: what a run's ranks printed, merged by time, and an archive about a run for a bug report."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipway.cli.runs import RUNS, complete_run, mention, named_run, warn_if_fleeting
from slipway.inspect.status import read_status
from slipway.launch.attempt.terminal import short_path
from slipway.launch.resolve.sources import read_all_values
from slipway.launch.run_directory.directory import RunDirectory
from slipway.options.numbers import Whole
from slipway.options.paths import LocalPath, LocalRun

if TYPE_CHECKING:
    from slipway.inspect.collapse import Shared
    from slipway.inspect.logs import Line, Numbers, Wanted

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
WITHOUT_TIME = " " * 24
TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%fZ"])


def _read_ranges(context: click.Context, option: click.Parameter, value: str | None) -> Numbers:
    """`0,3-5` as ranges."""
    from slipway.inspect.logs import parse_numbers

    try:
        return parse_numbers(value) if value is not None else ()
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None


def _read_time(context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    try:
        return TIME.convert(value, option, context) if value is not None else None
    except click.BadParameter:
        example = "write for example 2026-01-01T12:00:00 or 2026-01-01 (UTC), or copy one from a line"
        raise click.BadParameter(f"{value!r} is not a time; {example}", context, option) from None


def _read_pattern(context: click.Context, option: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(value) if value else None
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}", context, option) from None


@click.command(
    epilog="\b\nExample: slipway logs --follow\nExample: slipway logs gpt-20260101-120000 --rank 0,3-5 --tail 50\n"
    "Example: slipway logs gpt-20260101-120000 --bundle"
)
@click.argument("run", default="", type=LocalRun(), shell_complete=complete_run)
@RUNS
@click.option("--rank", "ranks", callback=_read_ranges, metavar="LIST", help="Only these ranks, as 0,3-5.")
@click.option("--node", "nodes", callback=_read_ranges, metavar="LIST", help="Only these nodes.")
@click.option("--attempt", "attempts", callback=_read_ranges, metavar="LIST", help="Only these attempts.")
@click.option("--grep", "pattern", callback=_read_pattern, metavar="REGEX", help="Only lines that match.")
@click.option("--errors", "failures", is_flag=True, help="Only tracebacks and lines that look like a failure.")
@click.option(
    "--since", callback=_read_time, metavar="TIME", help="Only from this time on (UTC), as 2026-01-01T12:00:00."
)
@click.option("--until", callback=_read_time, metavar="TIME", help="Only up to this time.")
@click.option("--tail", type=Whole(1, 100_000), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON lines: time, node, rank, attempt, text; identical lines are not merged.",
)
@click.option(
    "--bundle", is_flag=False, flag_value="", type=LocalPath(), metavar="[FILE.tar.gz]",
    help="Instead of printing, pack logs, plan, outcome, versions and a check into an archive for a bug report, without secrets.",
)  # fmt: skip
def logs(
    run: str, runs: str | None, tail: int | None, follow: bool, as_json: bool, bundle: str | None, **filters: Any
) -> None:
    """Show the output of all ranks of a RUN, merged by time. A line that several ranks printed is shown once.

    RUN is a path or a name in the folder of runs, by default the newest.
    """
    from slipway.inspect.logs import tell_elsewhere, tell_extent

    path = named_run(run, runs)
    if bundle is not None:
        if follow or as_json or tail or any(filters.values()):
            raise click.UsageError("--bundle packs everything; omit the options that select lines.")
        _bundle(path, bundle)
        return
    mention([*RunDirectory(path).odd_files(), *([elsewhere] if (elsewhere := tell_elsewhere(path)) else [])])
    texts, count = _texts(path, _wanted(filters), as_json, follow), 0
    try:
        for text in _last(texts, tail) if tail else texts:
            if text is not None:
                click.echo(text)
                count += 1
        if not count and any(filters.values()) and (extent := tell_extent(path)):
            click.echo(f"slipway: No log lines match. The run has {extent}.", err=True)
    except BrokenPipeError:  # `| head`; what Python still has in hand would be written at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:  # how one leaves --follow
        if not follow:
            raise


def _wanted(filters: dict[str, Any]) -> Wanted:
    from slipway.inspect.logs import Failures, Wanted

    given = {name: value for name, value in filters.items() if value}
    for name in {"since", "until"} & given.keys():
        given[name] = given[name].replace(tzinfo=UTC).timestamp()
    if "failures" in given:
        given["failures"] = Failures()
    return Wanted(**given)


def _texts(run: Path, wanted: Wanted, as_json: bool, follow: bool) -> Iterator[str | None]:
    """What to print; None each time all that was there is out."""
    from slipway.inspect.collapse import collapse
    from slipway.inspect.logs import closing, heading, read_log_lines

    lines = read_log_lines(run, wanted.takes_file, wanted.takes, lambda: follow and read_status(run).alive)
    if as_json:
        yield from (_as_json(line) if line else None for line in lines)
        return
    attempt = None
    for shared in collapse(lines):
        if shared and shared.line.attempt != attempt:
            attempt = shared.line.attempt
            yield heading(run, attempt)
        yield _as_text(shared) if shared else None
    if attempt is not None and (end := closing(run, attempt)):
        yield end


def _as_json(line: Line) -> str:
    rank = line.rank if line.rank >= 0 else None
    told = {"time": line.stamp or None, "node": line.node, "rank": rank, "attempt": line.attempt, "text": line.text}
    return json.dumps(told, ensure_ascii=False)


def _as_text(shared: Shared) -> str:
    """`2026-01-01T12:00:00.123Z ranks 0-3, 7: text`, with a colour for each rank."""
    colour = COLOURS[shared.line.rank % len(COLOURS)] if len(shared.places) == 1 else None
    who = click.style(f"{shared.who}:", fg=colour, bold=colour is None)
    return f"{shared.line.stamp or WITHOUT_TIME} {who} {shared.line.text}"


def _last(texts: Iterator[str | None], count: int) -> Iterator[str | None]:
    """The last so many of what was there from the start, and all that follows."""
    kept: deque[str] = deque(maxlen=count)
    for text in texts:
        if text is None:
            break
        kept.append(text)
    yield from kept
    yield from texts


def _bundle(run: Path, name: str) -> None:
    """Make the archive, and say where it is and what is not in it."""
    from slipway.inspect.bundle import NAME_ENDS, bundle_run

    if name and not name.endswith(NAME_ENDS):
        raise click.UsageError(
            f"--bundle {name}: the archive's name ends in {NAME_ENDS}. Where {name} is the run, type slipway logs {name} "
            "--bundle."
        )
    file = Path(".env")
    made = bundle_run(run, name, os.environ, read_all_values(file) if file.is_file() else {}, time.time())
    click.echo(f"{short_path(made.path.absolute())}  {made.size:,} bytes")
    for title, lines in (("notes", made.notes), ("left out", made.left_out)):
        for line in lines:
            click.echo(f"  {title:<8}  {line}")
    warn_if_fleeting(made.path)
    click.echo("Secrets that were recognized by name or form were removed. Review the archive before you share it.")
