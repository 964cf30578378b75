"""The names of a run's objects in a store.

    RUN/claims/00000004.json                                  who made attempt 4 (0: who made the run)
    RUN/attempt-00000004/record/metrics.jsonl                 run records, as attempt 4 last wrote them
    RUN/attempt-00000004/snapshots/step-00000500/…            the files of a snapshot, its manifest.json last
    RUN/attempt-00000004/snapshots/part-00003/step-00000500/…

A file of more than a piece is a folder of pieces, `model.safetensors/00000`, which make the file one after the other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slipway.protocol import files, snapshots

ATTEMPT = "attempt-"
WRITABLE = "-/writable"  # of no run: who may create it may write
RECORDS = (files.OUTCOME_FILE, files.OPTIONS_FILE, files.METRICS_FILE)  # run.json is in the claim
SNAPSHOT = re.compile(r"attempt-(\d{8})/snapshots/(?:part-(\d{5})/)?step-(\d{8,15})/(.+)")
PIECE = 64 << 20  # bytes of an object at most
CLAIM = re.compile(r"(\d{8})\.json")


class Location(NamedTuple):
    """Where a snapshot is in a store: the attempt that copied it, its step, and the part of the parameters that it has."""

    attempt: int
    step: int
    part: int = 0

    @property
    def folder(self) -> str:
        """The prefix of its objects below that of the run."""
        part = f"{snapshots.part_name(self.part)}/" if self.part else ""
        return f"{ATTEMPT}{self.attempt:08d}/{files.SNAPSHOTS}/{part}{snapshots.snapshot_name(self.step)}/"


def claim_name(run: str, attempt: int) -> str:
    """The object with which an attempt claims its number."""
    return f"{run}/claims/{attempt:08d}.json"


def record_folder(run: str, attempt: int) -> str:
    """The prefix of an attempt's run records."""
    return f"{run}/{ATTEMPT}{attempt:08d}/record/"


def parse_snapshot(name: str) -> tuple[Location, str] | None:
    """The snapshot that an object below a run belongs to, and the file; None where it belongs to none."""
    found = SNAPSHOT.fullmatch(name)
    return (Location(int(found[1]), int(found[3]), int(found[2] or 0)), found[4]) if found else None
