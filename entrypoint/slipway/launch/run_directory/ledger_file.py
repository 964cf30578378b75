"""The ledger of a job in the run directory, so that it goes on where a launcher was killed, and others can look at it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipway.launch.verdict.ledger import Kind, Ledger, ledger_json, ledger_of
from slipway.protocol.files import LEDGER_FILE, OUTCOME_FILE, node_folder, read_json, write_json

KEPT = 100  # failures


def write_ledger(node_dir: Path, ledger: Ledger, failures: Sequence[Mapping[str, Any]] = ()) -> None:
    """Keep a node's ledger, with what failed. A disk that is full or away does not end a job that runs."""
    with suppress(OSError):
        write_json(node_dir / LEDGER_FILE, {**ledger_json(ledger), "failures": list(failures)[-KEPT:]})


def read_failures(node_dir: Path) -> list[dict[str, Any]]:
    """The attempts that failed, as a node kept them beside its ledger, oldest first; what makes no sense is left out."""
    rows = read_json(node_dir / LEDGER_FILE).get("failures")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def last_ledger(run: Path, node_rank: int = 0) -> Ledger | None:
    """The newest ledger of a run, of a node or beside the verdict; None without one."""
    records = (read_json(node_folder(run, node_rank) / LEDGER_FILE), read_json(run / OUTCOME_FILE).get("ledger"))
    found = [ledger for record in records if (ledger := ledger_of(record))]
    return max(found, key=lambda ledger: ledger.until, default=None)


def go_on(ledger: Ledger, kind: Kind, now: float) -> Ledger:
    """A ledger that somebody else wrote, with what has passed since, up to `now` (Unix seconds), booked as this `kind`."""
    return ledger.book({kind: now - ledger.until})
