"""What a worker and the launcher exchange through files: heartbeats, the stop flag, and the worker's outcome.

Heartbeats show the launcher that a worker makes progress. The stop flag is a file that the launcher writes; all ranks agree
at which step they have seen it. The outcome is one JSON file per worker that says how it ended.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import click
import torch
import torch.distributed as dist

from slipway.protocol.causes import cause_of, in_one_line
from slipway.protocol.errors import DISK_ERRORS, NO_MORE_PROCESSES
from slipway.protocol.files import OUTCOMES, held_folder, rank_file, read_json, write_json
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import PHASES, Phase
from slipway.protocol.tracebacks import Raised, read_traceback

INTERVAL = 0.5  # seconds between two beats that are written within a phase
TRAINS = (Phase.TRAIN, Phase.DATA)
ASK = 2.0  # seconds between two checks whether this attempt is still the newest


class Heartbeat:
    """Beats come only from the thread that trains, so they stop when training does."""

    def __init__(self, path: Path, superseded: Callable[[], bool] = lambda: False) -> None:
        """Write to the file `path`. Errors are ignored: a full disk is reported by others.

        Every few seconds a beat asks whether the run is `superseded`, and if so ends this process.
        """
        self._path, self._superseded, self._asked = path, superseded, time.monotonic()
        self._phase: Phase | None = None
        self._written = 0.0
        self._beats = 0
        self._first: int | None = None  # the step that training began with
        self._spent: dict[str, float] = {}  # seconds in each phase
        self._highest, self._again = 0, 0.0  # the highest step; seconds of training below it, after a rollback
        self._newest: dict[str, Any] = {}
        self.facts: Mapping[str, Any] = {}  # part of every later beat
        self._late: Timer | None = None  # the last one that was started
        self._due = False  # whether it has yet to write
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return

    def beat(self, phase: Phase, step: int, steps: int | None) -> None:
        """Report that `step` of `steps` is done and `phase` is in progress; written on each change of phase, else twice a second.

        The last of several beats is always written: it shows where a rank hangs and how it differs from the others.
        Raises ValueError for an unknown phase, whose time limit would be unknown.
        """
        if phase not in PHASES:
            raise ValueError(f"there is no phase {phase!r}; there are {', '.join(PHASES)}")
        now = time.monotonic()
        self._beats += phase not in (Phase.DATA, Phase.PREPARE)  # which some ranks report more often than others
        if self._phase is not None:
            passed = now - self._newest["monotonic"]
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + passed
            again = min(step, self._newest["step"]) < self._highest and self._phase in TRAINS
            self._again += passed if again else 0.0
        if self._first is None and phase not in (Phase.SETUP, Phase.PREPARE, Phase.LOAD):
            self._first = step
        self._highest = max(self._highest, step)
        place = {"phase": phase, "step": step, "steps": steps, "beats": self._beats, "first": self._first}
        spent = {"spent": {**self._spent}, "again": self._again}
        self._newest = {**self.facts, **place, "monotonic": now, "pid": os.getpid(), **spent}
        changed, self._phase = phase != self._phase, phase
        if now - self._asked >= ASK:
            self._asked = now
            if self._superseded():
                print("another launcher has continued this run: this process ends", file=sys.stderr, flush=True)
                os._exit(1)  # without an outcome file: it would look like one of the new attempt
        if changed or now - self._written >= INTERVAL:
            self._written = now
            self._write()
        elif not self._due:
            self._due = True
            self._late = Timer(INTERVAL, self._catch_up)
            self._late.daemon = True
            self._late.start()

    def close(self) -> None:
        """Write a beat that is still due: the end of the process would interrupt the timer and leave half a file."""
        if self._late:
            self._late.cancel()
            self._late.join()
            if self._due:
                self._write()

    def _catch_up(self) -> None:
        self._due = False  # a later beat starts another timer
        self._write()

    def _write(self) -> None:
        # The timer's thread writes, too. Whoever saves reports a full disk.
        with self._lock, suppress(OSError), held_folder(self._path.parent) as folder:
            temporary = folder / f".{self._path.name}"
            temporary.unlink(missing_ok=True)  # do not write to a file or link that someone put there
            with temporary.open("x") as file:
                file.write(json.dumps(self._newest) + "\n")
            temporary.replace(folder / self._path.name)


WORDS = (None, Word.STOPPED, Word.CANCELLED)  # indexed by the number that the ranks exchange; the largest wins


class StopFlag:
    """Agreement among all ranks on whether to stop, whether any of them still waits for data, and on steps to trace.

    Each rank also tells a number, its `place`: `places` are the lowest and the highest of those in the last exchange.

    `wanted`, if set, returns how many steps should be traced now: on rank 0, before each exchange.
    """

    def __init__(self, path: Path | None, group: dist.ProcessGroup | None) -> None:
        """Read the file `path` (None on ranks that do not) and agree over the gloo `group`."""
        self._path = path
        self._group = group
        self._numbers = torch.zeros(5, dtype=torch.int64)
        self._work: dist.Work | None = None
        self.wanted: Callable[[], int] | None = None
        self._steps = 0

    def begin_stop_exchange(self, late: bool = False, place: int = 0) -> None:
        """Start to exchange what this rank sees now, whether its next data are `late`, and its `place`; does not wait."""
        self.close()
        word = read_stop_flag(self._path) if self._path else None
        self._numbers = torch.tensor([WORDS.index(word), int(late), self.wanted() if self.wanted else 0, place, -place])
        if self._group is not None:
            self._work = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group=self._group, async_op=True)
        else:
            self._note_steps()

    def finish_stop_exchange(self) -> tuple[str | None, bool]:
        """Return what the ranks exchanged last: `stopped`, `cancelled` or None, and whether data are late anywhere."""
        if self._group is None:  # a single process need not wait for the next exchange
            self.begin_stop_exchange(late=bool(self._numbers[1]))
        self.close()
        word, late, *_ = self._numbers.tolist()
        return WORDS[word], bool(late)

    @property
    def done(self) -> bool:
        """Whether all ranks have come to the exchange that was begun last."""
        return self._work is None or self._work.is_completed()

    @property
    def places(self) -> tuple[int, int]:
        """The lowest and the highest place of the exchange that was finished last."""
        *_, high, low = self._numbers.tolist()
        return -low, high

    def take_steps_to_trace(self) -> int:
        """Return how many steps the ranks agreed to trace since the last call: the same on all of them."""
        steps, self._steps = self._steps, 0
        return steps

    def close(self) -> None:
        """Wait for the exchange that `begin_stop_exchange` started."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._note_steps()

    def _note_steps(self) -> None:
        """Keep the agreed steps until they are taken: not every exchange is read."""
        self._steps = max(self._steps, int(self._numbers[2]))


def read_stop_flag(path: Path) -> str | None:
    """Return the word in the flag, None if there is no flag; one whose content makes no sense means `stopped`."""
    try:
        path.stat()
    except (
        OSError
    ):  # there is none, or the disk is away for a moment, which must not stop a training: the next step looks again
        return None
    word = read_json(path).get("outcome")
    return word if word in WORDS[1:] else Word.STOPPED


class NoProgressError(Exception):
    """Training cannot continue, and another attempt would not help."""


class PeerError(Exception):
    """Another rank cannot continue; it reports the reason itself."""


class UnhealthyError(Exception):
    """This node computes wrong results, or damages what it receives."""


class SupersededError(PeerError):
    """Another launcher took over the run: nothing may be written any more."""


@dataclass(frozen=True)
class WorkerOutcome:
    """How a worker ended; `message` is one line for users, `snapshot` the name of the last one saved.

    `outcome` is a Word. The worker exits with 0 if it is in GOOD, otherwise with 1.
    """

    outcome: str
    message: str
    step: int = 0
    snapshot: str | None = None
    exception: str | None = None
    where: str | None = None


def outcome_word(error: BaseException) -> str:
    """Return the outcome word for an exception."""
    if isinstance(error, ConfigurationError | click.UsageError):
        return Word.CONFIGURATION
    if isinstance(error, NoProgressError):
        return Word.NO_PROGRESS
    if isinstance(error, UnhealthyError) or (isinstance(error, OSError) and error.errno in DISK_ERRORS):
        return Word.UNHEALTHY
    if isinstance(error, torch.OutOfMemoryError):
        return Word.FAILED
    if isinstance(error, PeerError):
        return Word.PEER
    # All errors of torch, NCCL and CUDA are RuntimeErrors.
    word = cause_of(f"{type(error).__name__}: {error}") if isinstance(error, RuntimeError) else Word.FAILED
    if word != Word.FAILED:
        return word
    if isinstance(error, OSError | RuntimeError) and re.search(NO_MORE_PROCESSES, str(error)):
        return Word.UNHEALTHY
    return Word.FAILED


def describe_failure(error: BaseException, step: int, snapshot: str | None) -> WorkerOutcome:
    """Return the outcome of a worker that ended with `error`."""
    raised = read_traceback("".join(traceback.format_exception(error)).splitlines()) or Raised("")
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    whole = isinstance(error, click.ClickException)  # our own message, which ends with what to type
    line = (" ".join(text.split()) if whole else in_one_line(text)) or type(error).__name__
    word = outcome_word(error)
    if isinstance(error, ConfigurationError | click.UsageError):  # a user's mistake: no line of code to show
        return WorkerOutcome(word, line, step, snapshot)
    lost = word == Word.PEER and not isinstance(error, PeerError)  # which says itself what happened
    message = f"another process of this job went away or does not answer ({line})" if lost else line
    named = replace(raised, said=f"{type(error).__name__}: {line}", within="")
    return WorkerOutcome(word, message, step, snapshot, named.evidence, raised.where)


def write_outcome(node_dir: Path, rank: int, outcome: WorkerOutcome) -> None:
    """Write how a rank ended to its node's folder, with the time (Unix seconds). Raises OSError."""
    file = rank_file(node_dir, OUTCOMES, rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {**asdict(outcome), "time": time.time()})
