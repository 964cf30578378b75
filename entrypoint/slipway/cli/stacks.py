"""`slipway stacks`: where each rank of a running job stands, asked of its launchers by files in the run directory."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slipway.cli.runs import RUNS, complete_run, named_run
from slipway.inspect.status import read_status
from slipway.launch.hangs.standing import Standing, read_standing
from slipway.launch.run_directory.run_lock import beside, process_of
from slipway.options.numbers import Whole
from slipway.options.paths import LocalPath
from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.files import STACKS_FILE, STACKS_WANTED, read_json, touch_run_file
from slipway.protocol.printable import printable

PATIENCE = 15.0  # s for an answer, which takes a second or two, and longer where a process does not answer
GLANCE = 0.1  # s between two looks


@click.command(epilog="\b\nExample: slipway stacks train-20260101-120000 --rank 1")
@click.argument("run", default="", type=LocalPath(), shell_complete=complete_run)
@click.option("--rank", "rank", type=Whole(min=0), metavar="N", help="Only this rank, with all its threads.")
@RUNS
def stacks(run: str, rank: int | None, runs: str | None) -> None:
    """Show the Python stack of each rank of a running RUN, and the collectives in which it waits.

    RUN is a path or a name in the folder of runs, by default the newest.
    """
    path = named_run(run, runs)
    found = read_status(path)
    if not found.alive:
        raise LaunchError(f"{path} is not running. `slipway status {shlex.quote(str(path))}` shows how it ended.")
    answers = ask(found.locks)
    missing = [lock for lock in found.locks if lock not in answers]
    silent = f"did not answer within {PATIENCE:.0f} s; none does with SLIPWAY_WATCH=0"
    if not answers:
        raise LaunchError(f"The launcher of {path} {silent}.")
    nodes = dict(zip(found.locks, found.nodes, strict=True))
    rows = {int(one): (nodes[lock], row) for lock, ranks in answers.items() for one, row in ranks.items()}
    if rank is not None and rank not in rows and not missing:
        raise LaunchError(f"There is no rank {rank} here; there are {', '.join(map(str, sorted(rows)))}.")
    for number in sorted(rows) if rank is None else [rank] if rank in rows else []:
        node, row = rows[number]
        for line in describe(number, node, row, whole=rank is not None):
            click.echo(printable(line))
    for lock in missing:
        process = process_of(lock)
        who = f"node {nodes[lock]}" if process is None else f"rank {process}"
        click.echo(f"{who}: its launcher {silent}", err=True)


def ask(locks: Sequence[Path]) -> dict[Path, Mapping[str, Any]]:
    """What launchers answer, by rank, of each by the file in which it says that it holds its folder. Raises LaunchError where
    they cannot be asked.
    """
    files = {lock: beside(lock, STACKS_FILE) for lock in locks}
    before = {lock: read_json(file).get("time") for lock, file in files.items()}
    try:
        for lock in locks:
            touch_run_file(beside(lock, STACKS_WANTED))
    except OSError as error:
        raise LaunchError(f"The request cannot be written: {error}", code_of(error)) from None
    answers: dict[Path, Mapping[str, Any]] = {}
    until = time.monotonic() + PATIENCE
    while len(answers) < len(files) and time.monotonic() < until:
        time.sleep(GLANCE)
        for lock, file in files.items():
            content = read_json(file)
            if content.get("time") not in (None, before[lock]) and isinstance(content.get("ranks"), dict):
                answers[lock] = content["ranks"]
    return answers


def describe(rank: int, node: int, row: Mapping[str, Any], *, whole: bool) -> Iterator[str]:
    """A rank as lines; `whole`: with all threads, and the collectives that it began last."""
    answer, state = row.get("answer"), str(row.get("state") or "")
    try:
        one = read_standing(rank, node, answer, state=state) if answer else Standing(rank, node, state)
    except ValueError:
        one = Standing(rank, node, "gave an answer that makes no sense")
    yield from one.lines(whole=whole)
    if not answer:
        if row.get("pid"):
            yield f"    from outside: py-spy dump --pid {row['pid']}, on that node and as the same user"
        return
    if whole:
        for call in one.calls:
            yield f"    {'done' if call.done else 'waits'}: {call} {call.shape}"
        for name, main, frames in answer["threads"]:
            if not main:
                yield f"  thread {name or 'without a name'}"
                yield from (f"    {file}:{line} {function}()" for file, line, function in reversed(frames))
