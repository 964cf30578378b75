"""A worker's life in its job: it joins, exchanges what is not a gradient, and leaves an outcome file.

with open_context() as context:
    train(context)   # holds model and optimizer in its own frame, so that they are gone when the block ends
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
import torch
import torch.distributed as dist

from slipway.protocol.files import HEARTBEATS, HONOURS_STOP, STOP_FILE, rank_file, touch_run_file
from slipway.protocol.mistake import ExplainedError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.train.worker.collectives import RankCollectives
from slipway.train.worker.launcher import Heartbeat, StopFlag, WorkerOutcome, describe_failure, write_outcome
from slipway.train.worker.place import Place, leave_group, open_device, open_group, read_place

SAME_DEVICE = "Start all nodes with GPUs, or hide the GPUs of all: CUDA_VISIBLE_DEVICES=-1."
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Context(RankCollectives):
    """A worker's place, its device, its heartbeat and stop flag, and what it exchanges with the other ranks besides gradients."""

    def __init__(
        self, place: Place, device: torch.device, side: dist.ProcessGroup | None, heartbeat: Heartbeat
    ) -> None:
        """Use `side`, a gloo group of all ranks, for flags and snapshots; None with a single process."""
        super().__init__(place, side)
        self.device = device
        self.steps: int | None = None  # in all, once it is known
        self.outcome = WorkerOutcome(Word.FINISHED, "finished")
        self.flag = StopFlag(place.node_dir / STOP_FILE if self.is_local_leader else None, side)
        self._heartbeat = heartbeat
        self._waited: dict[int, float] = {}  # seconds, by the rank that was waited for

    def alone(self, run_dir: Path) -> Context:
        """This process as a job of its own, with its files in `run_dir`; it stops and beats as before."""
        place = replace(self.place, rank=0, world_size=1, run_dir=run_dir, resume="none", memory=())
        return Context(place, self.device, None, self._heartbeat)

    @property
    def is_local_leader(self) -> bool:
        """Whether this worker prints: the first of each node does."""
        return self.place.local_rank == 0

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.place.rank == 0:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Print a line on stderr, on whichever rank asks for it."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, step: int, snapshot: str | None = None) -> None:
        """Note how far this worker came, for its outcome file."""
        self.outcome = replace(self.outcome, step=step, snapshot=snapshot or self.outcome.snapshot)

    def conclude(self, word: str, message: str) -> None:
        """Note how the work ended, for the outcome file."""
        self.outcome = replace(self.outcome, outcome=word, message=message)

    def note_own_time(
        self, own: float | None, rank: int | None = None, slower: float = 0.0, waited: float = 0.0
    ) -> None:
        """Tell the launcher how long this rank works on a step by itself, in seconds, as far as that is known, and which `rank`
        makes all others wait: by which share it is `slower`, and for how many seconds they `waited` since the last call.
        """
        if rank is not None:
            self._waited[rank] = self._waited.get(rank, 0.0) + waited
        self._heartbeat.facts = {
            "own": None if own is None else round(own, 6),
            "slow": None if rank is None else [rank, round(slower, 4)],
            "waited": {str(each): round(seconds, 3) for each, seconds in self._waited.items()},
        }

    def beat(self, phase: Phase) -> None:
        """Tell the launcher that `phase` goes on."""
        self._heartbeat.beat(phase, self.outcome.step, self.steps)

    def begin_stop_exchange(self, late: bool = False) -> None:
        """Begin to exchange the stop flag, and whether this rank's next data are `late`. By every rank."""
        self.flag.begin_stop_exchange(late)

    def finish_stop_exchange(self) -> tuple[str | None, bool]:
        """`stopped`, `cancelled` or None, and whether data are late, as of the exchange begun last: the same on all ranks."""
        return self.flag.finish_stop_exchange()

    def agree(self, late: bool = False) -> tuple[str | None, bool]:
        """The same at once: returns when every rank is here."""
        self.flag.begin_stop_exchange(late)
        return self.flag.finish_stop_exchange()

    def close(self) -> None:
        """Finish what is still under way between the ranks, and let go of them."""
        self.flag.close()
        self.flag = StopFlag(None, None)
        self.side = None


@contextmanager
def outside_job() -> Iterator[Context]:
    """A context outside any job, on this machine's best device; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        place = read_place({"SLIPWAY_RUN_DIR": folder, "SLIPWAY_NODE_DIR": folder, "SLIPWAY_DEVICE": device})
        yield Context(place, open_device(place), None, Heartbeat(rank_file(Path(folder), HEARTBEATS, 0)))


def pass_over_stops(note: Callable[[int], object] = lambda number: None) -> dict[signal.Signals, Any]:
    """Survive the signals that stop a job, which some schedulers send to every process: the flag has been asked for instead.

    Returns what was replaced, Python's defaults, by a handler that only calls `note`: unlike SIG_IGN it is not inherited by
    programs that this process starts. What the script handles itself, and what is ignored already, stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}  # where no handler can be set
    ends = (signal.SIG_DFL, signal.default_int_handler)
    deadly = {number: handler for number in STOPS if (handler := signal.getsignal(number)) in ends}
    for number in deadly:
        signal.signal(number, lambda number, _: note(number))
        signal.siginterrupt(number, False)
    return deadly


def report_failure(error: BaseException, place: Place, so_far: WorkerOutcome) -> None:
    """Print what went wrong, in full where nothing is known about it, and write it down."""
    outcome = describe_failure(error, so_far.step, so_far.snapshot)
    if outcome.outcome == Word.FAILED and not isinstance(error, ExplainedError):
        traceback.print_exception(error)
    elif outcome.outcome != Word.CONFIGURATION or place.local_rank == 0:  # all ranks find the same mistake
        print(outcome.message, file=sys.stderr, flush=True)
    if place.superseded:
        return  # the file would be taken for one of the new attempt
    try:
        write_outcome(place.node_dir, place.rank, outcome)
    except OSError as full:
        # The launcher quotes the last line, and this is why there is no better one.
        print(f"{full}: how this worker ended cannot be written there", file=sys.stderr, flush=True)


def _leave_at_once() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(1)


@contextmanager
def open_context(environ: Mapping[str, str] = os.environ, *, abandon: bool = False) -> Iterator[Context]:
    """Join the job, and leave it cleanly with an outcome file, whatever happens in the block.

    An exception in the block is written down and printed (in full where nothing is known about it, else as one line)
    and becomes SystemExit(1). `sys.exit()` without a code, as after argparse's `--help`, is a good end.

    `abandon`: after a failure this process ends at once. It lets go of nobody, which may take as long as a collective may
    (NCCL waits for peers that are connected), and nothing runs that a script would do at its end. Slipway's workloads do so.
    """
    place = read_place(environ)
    touch_run_file(place.node_dir / HONOURS_STOP)
    fenced = place.is_writer  # the others notice that it is gone, and thousands need not ask
    heartbeat = Heartbeat(
        rank_file(place.node_dir, HEARTBEATS, place.rank), (lambda: place.superseded) if fenced else lambda: False
    )
    heartbeat.beat(Phase.SETUP, 0, None)
    context, left = None, False
    stops = pass_over_stops()
    try:
        device = open_device(place)
        context = Context(place, device, open_group(place, device), heartbeat)
        context.require_same({"its device": device.type}, SAME_DEVICE)
        try:
            yield context
        except SystemExit as end:
            if end.code:
                raise
            left = True
        context.close()
        write_outcome(place.node_dir, place.rank, context.outcome)
        leave_group()
    except click.exceptions.Exit:  # after --help
        leave_group()
        write_outcome(place.node_dir, place.rank, WorkerOutcome(Word.FINISHED, "printed its help"))
    except BaseException as error:
        report_failure(error, place, context.outcome if context else WorkerOutcome(Word.FAILED, ""))
        if abandon:
            _leave_at_once()
        chain: BaseException | None = error
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)  # they hold the model
            chain = chain.__context__
        leave_group()
        raise SystemExit(1) from None
    finally:
        heartbeat.close()
        for number, handler in stops.items():
            signal.signal(number, handler)
    if left:
        raise SystemExit(0)
