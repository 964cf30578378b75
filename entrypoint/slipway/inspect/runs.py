"""All runs of a folder in a table: what each trains, how far it is, and how it stands or ended."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.inspect.status import Status, read_status
from slipway.launch.run_directory.directory import list_run_directories
from slipway.launch.verdict.block import ENDINGS
from slipway.protocol.printable import utc

HEAD = ("run", "started", "step", "state")


@dataclass(frozen=True)
class RunRow:
    """A run in the table; `started` is unix seconds, None where its record does not say; `step` the newest one that is known."""

    run: str
    workload: str
    started: float | None
    step: int | None
    alive: bool
    state: str

    def as_json(self) -> dict[str, Any]:
        """The documented form of `slipway runs --json`."""
        return asdict(self)


def list_runs(runs: Path, most: int) -> tuple[list[RunRow], int]:
    """The runs of a folder that were started last, at most so many, the newest first; and how many there are.

    Takes up to a few seconds where a launcher runs on another host, or did: all are asked side by side.
    """
    started = {run.path: run.record.started for run in list_run_directories(runs)}
    newest = sorted(started, key=lambda path: (started[path] or 0.0, path.name), reverse=True)
    with ThreadPoolExecutor(max_workers=32) as pool:
        rows = list(pool.map(lambda path: read_row(read_status(path)), newest[:most]))
    return rows, len(newest)


def read_row(status: Status) -> RunRow:
    """A run's row of the table."""
    steps = [beat.step for beat in status.beats] + ([] if status.snapshot is None else [status.snapshot])
    state = ENDINGS.get(status.outcome.word, "without a verdict")
    if status.alive:
        state = "hangs" if status.hang else "waiting for nodes" if status.waiting else "running"
    workload = status.record.workload or "–"
    return RunRow(status.path.name, workload, status.record.started, max(steps, default=None), status.alive, state)


def table_lines(rows: Iterable[RunRow]) -> list[str]:
    """The table for people."""
    cells = [HEAD, *((row.run, _started(row), "–" if row.step is None else str(row.step), row.state) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD) - 1)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in cells]


def _started(row: RunRow) -> str:
    return "–" if row.started is None else utc(row.started)
