"""`slipway stacks`: where each rank of a running job stands, asked of its launchers by files in the run directory."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slipway.cli.runs import RUNS, complete_run, mention, named_run
from slipway.inspect.status import read_status
from slipway.launch.hangs.hang import find_hang, stacks_of
from slipway.launch.hangs.recorder_files import read_recorder_files
from slipway.launch.hangs.stack_dump import StackDump, read_stack_dump
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.options.numbers import Whole
from slipway.options.paths import LocalPath, LocalRun
from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.files import STACKS_WANTED, touch_run_file
from slipway.protocol.printable import printable, rank_ranges

PATIENCE = 15.0  # s for an answer, which takes a second or two, and longer where a process does not answer
POLL = 0.1  # s between polls


@click.command(epilog="\b\nExample: slipway stacks train-20260101-120000 --rank 1")
@click.argument("run", default="", type=LocalRun(), shell_complete=complete_run)
@click.option("--rank", "rank", type=Whole(min=0), metavar="N", help="Only this rank, with all its threads.")
@click.option(
    "--recorders",
    type=LocalPath(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Instead of a run: the files that torch's flight recorders left in FOLDER, of any job of torchrun.",
)
@RUNS
def stacks(run: str, rank: int | None, recorders: Path | None, runs: str | None) -> None:
    """Show the Python stack of each rank of a running RUN, and the collectives in which it waits.

    RUN is a path or a name in the folder of runs, by default the newest. With --recorders, name the ranks that a job waited for.
    """
    if recorders:
        if run or runs:
            raise click.UsageError("--recorders reads files of a folder, and no run; leave RUN and --runs out.")
        show_recorders(recorders, rank)
        return
    path = named_run(run, runs)
    found = read_status(path)
    if not found.alive:
        raise LaunchError(f"{path} is not running. `slipway status {shlex.quote(str(path))}` shows how it ended.")
    answers = ask(found.launchers)
    missing = [node for node in found.launchers if node not in answers]
    silent = f"did not answer within {PATIENCE:.0f} s; none does with SLIPWAY_WATCH=0"
    if not answers:
        raise LaunchError(f"The launcher of {path} {silent}.")
    rows = {one: (node.rank, row) for node, ranks in answers.items() for one, row in ranks.items()}
    if rank is not None and rank not in rows and not missing:
        raise LaunchError(f"There is no rank {rank} here; there are {', '.join(map(str, sorted(rows)))}.")
    for number in sorted(rows) if rank is None else [rank] if rank in rows else []:
        node_rank, row = rows[number]
        for line in describe(number, node_rank, row, whole=rank is not None):
            click.echo(printable(line))
    for node in missing:
        who = f"node {node.rank}" if node.process is None else f"rank {node.process}"
        click.echo(f"{who}: its launcher {silent}", err=True)


def show_recorders(folder: Path, rank: int | None) -> None:
    """Print which ranks a job waited for, by its recorders' files; or what one rank began. Raises LaunchError."""
    found = read_recorder_files(folder)
    mention(found.notes)
    if rank is None:
        hang = find_hang(found.dumps)
        text = f"hang: {hang.text}" if hang else "no hang: all that the ranks began is done"
        lines = [text, *(stacks_of(hang, found.dumps) if hang else ())]
    elif rank in found.answers:
        one = read_stack_dump(rank, -1, {**found.answers[rank], "threads": []})
        lines = [*one.lines(), *(f"    {'done' if call.done else 'waits'}: {call} {call.shape}" for call in one.calls)]
    else:
        raise LaunchError(f"There is no file of rank {rank}; there are {rank_ranges(sorted(found.answers))}.")
    for line in lines:
        click.echo(printable(line))


def ask(launchers: Sequence[NodeDirectory]) -> dict[NodeDirectory, Mapping[int, Mapping[str, Any]]]:
    """What launchers answer, by rank. Raises LaunchError where they cannot be asked."""
    before = {node: node.stacks().time for node in launchers}
    try:
        for node in launchers:
            touch_run_file(node.file(STACKS_WANTED))
    except OSError as error:
        raise LaunchError(f"The request cannot be written: {error}", code_of(error)) from None
    answers: dict[NodeDirectory, Mapping[int, Mapping[str, Any]]] = {}
    until = time.monotonic() + PATIENCE
    while len(answers) < len(launchers) and time.monotonic() < until:
        time.sleep(POLL)
        answered = {node: node.stacks() for node in launchers}
        answers |= {
            node: content.ranks for node, content in answered.items() if content.time not in (None, before[node])
        }
    return answers


def describe(rank: int, node: int, row: Mapping[str, Any], *, whole: bool) -> Iterator[str]:
    """A rank as lines; `whole`: with all threads, and the collectives that it began last."""
    answer, state = row.get("answer"), str(row.get("state") or "")
    try:
        one = read_stack_dump(rank, node, answer, state=state) if answer else StackDump(rank, node, state)
    except ValueError:
        one = StackDump(rank, node, "sent an invalid answer")
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
