"""How a worker ended, in one JSON file that the launcher reads."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import torch

from slipway.protocol.causes import cause_of, in_one_line
from slipway.protocol.errors import DISK_ERRORS, NO_MORE_PROCESSES
from slipway.protocol.files import OUTCOMES, rank_file, write_json
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.tracebacks import Raised, read_traceback


class NoProgressError(Exception):
    """Training cannot get any further, and another attempt would not help."""


class PeerError(Exception):
    """Another rank cannot go on; it says itself why."""


class UnhealthyError(Exception):
    """This node computes wrongly."""


class SupersededError(PeerError):
    """Another launcher went on with the run: nothing may be written any more."""


@dataclass(frozen=True)
class WorkerOutcome:
    """One worker's ending; `message` is one line for people, `snapshot` the name of the last one saved.

    `outcome` is finished, stopped or cancelled (exit 0), or failed, configuration, peer, unhealthy or no-progress
    (exit 1).
    """

    outcome: str
    message: str
    step: int = 0
    snapshot: str | None = None
    exception: str | None = None
    where: str | None = None


def outcome_word(error: BaseException) -> str:
    """The outcome word for an exception."""
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
    # Everything of torch's, NCCL's and CUDA's is one.
    word = cause_of(f"{type(error).__name__}: {error}") if isinstance(error, RuntimeError) else Word.FAILED
    if word != Word.FAILED:
        return word
    if isinstance(error, OSError | RuntimeError) and NO_MORE_PROCESSES.search(str(error)):
        return Word.UNHEALTHY
    return Word.FAILED


def describe_failure(error: BaseException, step: int, snapshot: str | None) -> WorkerOutcome:
    """The outcome of a worker that ended with `error`."""
    raised = read_traceback("".join(traceback.format_exception(error)).splitlines()) or Raised("")
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    whole = isinstance(error, click.ClickException)  # our own words, which end with what to type
    line = (" ".join(text.split()) if whole else in_one_line(text)) or type(error).__name__
    word = outcome_word(error)
    if isinstance(error, ConfigurationError | click.UsageError):  # a user's mistake, which is nowhere in our code
        return WorkerOutcome(word, line, step, snapshot)
    message = f"another process of this job went away or does not answer ({line})" if word == Word.PEER else line
    told = replace(raised, said=f"{type(error).__name__}: {line}", within="")
    return WorkerOutcome(word, message, step, snapshot, told.evidence, raised.where)


def write_outcome(node_dir: Path, rank: int, outcome: WorkerOutcome) -> None:
    """Write how a rank ended into its node's folder, with the time (Unix seconds). Raises OSError."""
    file = rank_file(node_dir, OUTCOMES, rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {**asdict(outcome), "time": time.time()})
