"""`slipway trace`: steps of a running training as torch's profiler sees them on all ranks, and where their time went."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipway.cli.runs import RUNS, complete_run, mention, named_run
from slipway.inspect.status import Status, read_status
from slipway.launch.attempt.terminal import short_path
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.node_directory import TraceAnswer
from slipway.options.numbers import Whole
from slipway.options.paths import LocalRun
from slipway.protocol.errors import FAILED, LaunchError, code_of, told_if_unreadable
from slipway.protocol.files import CLOCKS_FILE, TRACE_WANTED, TRACEABLE, TRACES, held_folder, write_json
from slipway.protocol.printable import printable

if TYPE_CHECKING:
    from slipway.inspect.trace import Merged

ANSWER_POLL, RUN_POLL = 0.1, 2.0  # s between polls of the answer, and of whether the run continues
SAID = {
    "": "requested; it starts when the current step has ended",
    "taken": "all ranks start after the next step",
    "tracing": "recording {steps} after step {step}",
    "collecting": "recorded; rank 0 collects the traces of all ranks",
}


@click.command(epilog="\b\nExample: slipway trace gpt-20260101-120000 --steps 5")
@click.argument("run", default="", type=LocalRun(), shell_complete=complete_run)
@click.option(
    "--steps", type=Whole(1, 100), default=3, show_default=True, metavar="N", help="Number of steps to record."
)
@RUNS
def trace(run: str, steps: int, runs: str | None) -> None:
    """Record steps of a running RUN with torch's profiler on all ranks, without a restart.

    Writes one file for https://ui.perfetto.dev, and shows which operators took most time and how long training waited for
    communication. RUN is a path or a name in the folder of runs, by default the newest, or a folder of traces to merge
    again.
    """
    with told_if_unreadable("Run this command as its owner."):
        is_trace = run != "" and (Path(run) / CLOCKS_FILE).is_file()
    path = Path(run) if is_trace else recorded(named_run(run, runs), steps)
    from slipway.inspect.trace import merge

    for line in tell(merge(path)):
        click.echo(printable(line))


def recorded(path: Path, steps: int) -> Path:
    """Have a run record steps; the folder with the traces. Raises LaunchError."""
    found = read_status(path)
    require_traceable(found)
    run = RunDirectory(path)
    node, attempt, token = run.node(0), run.record.attempt, secrets.token_hex(8)
    answer = node.trace_answer()
    busy = answer.attempt == attempt and answer.state in ("taken", "tracing", "collecting")
    if busy or node.file(TRACE_WANTED).exists():
        raise LaunchError(f"Steps of {path} are being traced already. Try again in a moment.", FAILED)
    try:
        write_json(node.file(TRACE_WANTED), {"id": token, "steps": steps, "attempt": attempt})
    except OSError as error:
        raise LaunchError(f"The request cannot be written: {error}", code_of(error)) from None
    try:
        return wait_for_traces(run, attempt, token)
    finally:  # whatever ended the waiting, Ctrl-C too: nobody waits for a trace that was not begun
        if node.trace_request() == token:
            with suppress(OSError), held_folder(node.path) as folder:
                (folder / TRACE_WANTED).unlink(missing_ok=True)


def require_traceable(found: Status) -> None:
    """Raise LaunchError unless a training of ours runs, whose rank 0 reads this folder."""
    path, node = shlex.quote(str(found.path)), RunDirectory(found.path).node(0)
    if not found.alive:
        raise LaunchError(f"{found.path} is not running. `slipway status {path}` shows how it ended.")
    if 0 not in found.nodes and not node.path.is_dir():
        holder = found.holders[0].text
        raise LaunchError(
            f"Rank 0 of {found.path} runs on another node with a disk of its own; here is {holder}. Type this on node 0."
        )
    if node.file(TRACEABLE).exists():
        return
    if found.record.workload in WORKLOADS:
        raise LaunchError(
            f"{found.path} is not training, or not yet: `slipway status {path}` tells. Try again when it is.", FAILED
        )
    raise LaunchError(
        f"{found.path} is a script with a loop of its own, which cannot be traced from outside. In the script "
        "`from slipway.train import trace` does it: docs/tracing.md."
    )


def wait_for_traces(run: RunDirectory, attempt: int, token: str) -> Path:
    """Return the folder with the traces once all is in it. Raises LaunchError where nothing will come any more."""
    said, looked = None, time.monotonic()
    while True:
        answer = run.node(0).trace_answer()
        state = answer.state if answer.id == token else ""
        if state == "done":
            return run.path / TRACES / Path(answer.folder).name
        if state == "failed":
            raise LaunchError(f"There is no trace: {answer.why}.", FAILED)
        if state != said:
            mention([SAID[state].format(**described(answer))] if state in SAID else [])
            said = state
        if time.monotonic() - looked > RUN_POLL:
            if gone := why_gone(run, attempt, token):
                raise LaunchError(f"There is no trace: {gone}.", FAILED)
            looked = time.monotonic()
        time.sleep(ANSWER_POLL)


def described(answer: TraceAnswer) -> dict[str, str]:
    """An answer's numbers in words."""
    return {"steps": "1 step" if answer.steps == 1 else f"{answer.steps} steps", "step": str(answer.step)}


def why_gone(run: RunDirectory, attempt: int, token: str) -> str:
    """Why no answer to a request will come any more; empty where one may."""
    node = run.node(0)
    if run.record.attempt != attempt:
        return "the attempt ended, and another one began; ask again"
    wanted = node.trace_request()  # before the answer, which is written before this is gone
    if token not in (wanted, node.trace_answer().id):
        return (
            "another request came in between; ask again" if wanted else "rank 0 took the request and does not answer it"
        )
    if not node.file(TRACEABLE).exists() or not read_status(run.path).alive:
        return "training ended before" if node.trace_answer().state != "done" else ""
    return ""


def tell(merged: Merged) -> Iterator[str]:
    """A merged trace in words: what it holds, where the time went, and where it is."""
    from slipway.inspect.trace_summary import table

    ranks, steps = len(merged.summaries), merged.steps
    span = f"step {merged.first + 1}" if steps == 1 else f"steps {merged.first + 1} to {merged.first + steps}"
    early = f" instead of {merged.wanted}, since {merged.why}" if merged.why else ""
    who = "1 rank" if ranks == 1 else f"{ranks} ranks"
    clocks = f", whose clocks were compared to within {merged.spread / 1e6:.3f} ms" if ranks > 1 else ""
    yield f"{span} of {who}{clocks}" if not early else f"{span}{early}, of {who}{clocks}"
    yield from table(merged.summaries)
    yield from (f"  left out    {line}" for line in merged.missing)
    yield f"{short_path(merged.path.absolute())}  {merged.path.stat().st_size:,} bytes; open it at https://ui.perfetto.dev"
