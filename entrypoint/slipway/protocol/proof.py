"""What `slipway prove` asks of the processes of a run, and the events that they write down: a file per rank and attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from slipway.protocol.files import write_json

VARIABLE = "SLIPWAY_PROOF"  # the folder of a run's request and events; only set in proving runs
# In that folder; FAILURE: how an attempt failed that nobody killed, KILLED with a number: a kill of the request was done.
REQUEST, FAILURE, KILLED = "request.json", "failure", "killed-"
ELSEWHERE = "elsewhere"  # the loop of a framework, which resumes by itself at a boundary of its choice


class EventKind(StrEnum):
    """What happened: the loop began or resumed; a batch was handed out; a model was called, or returned in a validation; an
    optimizer stepped; `run.log` was called; a boundary was reached.
    """

    BEGIN = "begin"
    BATCH = "batch"
    FORWARD = "forward"
    OUTPUT = "output"
    STEP = "step"
    LOG = "log"
    BOUNDARY = "boundary"


class EventMoment(NamedTuple):
    """An event of a rank: after which boundary, and its number since that."""

    rank: int
    at: str
    number: int


class Event(NamedTuple):
    """What a rank did. `at`: the position of the last boundary, as JSON; `number`: its own since that.

    `values`: hashes of tensors, and other values as text, by name; `random`: hashes of the global random generators;
    `validates`: a model in eval mode, or without gradients; `facts`: what messages need.
    """

    kind: str
    at: str
    number: int
    values: Mapping[str, Any] = {}
    random: Mapping[str, int] = {}
    validates: bool = False
    facts: Mapping[str, Any] = {}

    @property
    def step(self) -> int:
        """The step that it belongs to, counted from 1; at a boundary the one that is done."""
        return int(json.loads(self.at)["step"]) + (self.kind not in (EventKind.BEGIN, EventKind.BOUNDARY))


def event_file(folder: Path, rank: int, attempt: int) -> Path:
    """Where a rank writes the events of an attempt."""
    return folder / f"rank-{rank}-{attempt:04}.jsonl"


def killed_file(folder: Path, number: int) -> Path:
    """What shows that a kill of the request was done."""
    return folder / f"{KILLED}{number}"


def write_request(folder: Path, steps: int, kills: Sequence[EventMoment]) -> None:
    """Ask for so many steps, and for these kills."""
    folder.mkdir(parents=True)
    write_json(folder / REQUEST, {"steps": steps, "kills": [list(kill) for kill in kills]})


def read_events(folder: Path) -> dict[int, list[list[Event]]]:
    """Return the events of each rank by attempt, without lines that a kill has torn."""
    found: dict[int, list[list[Event]]] = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        events: list[Event] = []
        for line in file.read_text().splitlines():
            with suppress(ValueError, TypeError):
                events.append(Event(*json.loads(line)))
        found.setdefault(int(file.name.split("-")[1]), []).append(events)
    return found
