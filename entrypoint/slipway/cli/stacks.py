"""`slipway stacks`: where each rank of a running job stands, asked of its launchers by files in the run directory."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slipway.cli.runs import RUNS, complete_run, named_run
from slipway.launch.run_directory.status import read_status
from slipway.launch.watch.standing import Standing, read_standing
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError, code_of
from slipway.protocol.files import STACKS_FILE, STACKS_WANTED, node_folder, read_json, touch_run_file
from slipway.protocol.printable import printable

PATIENCE, GLANCE = (
    15.0,
    0.1,
)  # s for an answer, which takes a second or two, and longer of who is silent; between two looks


@click.command(epilog="\b\nExample: slipway stacks train-20260101-120000 --rank 1")
@click.argument("run", default="", shell_complete=complete_run)
@click.option("--rank", "rank", type=Whole(min=0), metavar="N", help="Only this rank, with all its threads.")
@RUNS
def stacks(run: str, rank: int | None, runs: str | None) -> None:
    """Show where each rank of a running RUN stands: its Python stack, and the collectives that it waits in.

    RUN is a path or a name in the folder of runs, by default the newest.
    """
    path = named_run(run, runs)
    found = read_status(path)
    if not found.alive:
        raise LaunchError(f"{path} is not running. `slipway status {shlex.quote(str(path))}` tells how it ended.")
    answers = ask(path, found.nodes)
    missing = [node for node in found.nodes if node not in answers]
    silent = f"did not answer within {PATIENCE:.0f} s; none does with SLIPWAY_WATCH=0, nor one that was started once per process"
    if not answers:
        raise LaunchError(f"The launcher of {path} {silent}.")
    rows = {int(rank): (node, row) for node, ranks in answers.items() for rank, row in ranks.items()}
    if rank is not None and rank not in rows and not missing:
        raise LaunchError(f"There is no rank {rank} here; there are {', '.join(map(str, sorted(rows)))}.")
    for number in sorted(rows) if rank is None else [rank] if rank in rows else []:
        node, row = rows[number]
        for line in describe(number, node, row, whole=rank is not None):
            click.echo(printable(line))
    for node in missing:
        click.echo(f"node {node}: its launcher {silent}", err=True)


def ask(path: Path, nodes: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """What the launchers of these nodes answer, by node and rank. Raises LaunchError where they cannot be asked."""
    folders = {node: node_folder(path, node) for node in nodes}
    before = {node: read_json(folder / STACKS_FILE).get("time") for node, folder in folders.items()}
    try:
        for folder in folders.values():
            touch_run_file(folder / STACKS_WANTED)
    except OSError as error:
        raise LaunchError(f"The request cannot be written: {error}", code_of(error)) from None
    answers: dict[int, Mapping[str, Any]] = {}
    until = time.monotonic() + PATIENCE
    while len(answers) < len(folders) and time.monotonic() < until:
        time.sleep(GLANCE)
        for node, folder in folders.items():
            content = read_json(folder / STACKS_FILE)
            if content.get("time") not in (None, before[node]) and isinstance(content.get("ranks"), dict):
                answers[node] = content["ranks"]
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
