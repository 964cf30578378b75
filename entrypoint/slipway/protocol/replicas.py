"""When replicas of a model differed, or a rank computed wrongly: what rank 0 writes into `replicas.json`, and others read."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from slipway.protocol.decoding import decode_rows
from slipway.protocol.files import REPLICAS_FILE, read_json, write_json

REMEMBERED = 100  # differences, the newest


class FindingKind(StrEnum):
    """What was found, as it is written down."""

    DRIFT = "replicas"
    ARITHMETIC = "arithmetic"


class ReplicaDifference(NamedTuple):
    """When (Unix seconds) and after which step, on which nodes, in what, and what kind of finding it is."""

    time: float
    step: int
    nodes: tuple[str, ...]
    text: str
    kind: FindingKind = FindingKind.DRIFT

    def __str__(self) -> str:
        """How people read it."""
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"step {self.step}, {when}, {' and '.join(self.nodes)}: {self.text}"

    @property
    def sentence(self) -> str:
        """What was found, and when."""
        what = "the replicas differed" if self.kind == FindingKind.DRIFT else "a rank computed wrongly"
        return f"{what} at {self}"


def read_differences(run: Path) -> list[ReplicaDifference]:
    """All that were found in a run, oldest first; what makes no sense is left out."""
    found = decode_rows(ReplicaDifference, read_json(run / REPLICAS_FILE).get("differences"))
    return [each for each in found if 0 <= each.time < 1e11]


def write_differences(run: Path, differences: Sequence[ReplicaDifference]) -> None:
    """Keep them. Raises OSError."""
    write_json(run / REPLICAS_FILE, {"differences": [each._asdict() for each in differences[-REMEMBERED:]]})
