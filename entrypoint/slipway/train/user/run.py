"""A user's own training loop as a job that resumes: `run = slipway.resume(model=ddp, optimizer=optimizer)`.

Snapshots, their rhythm and the stop flag are those of `fit` (snapshots/job.py, worker/context.py). What is different here: nobody
knows what comes next in the loop, so everything happens at a *boundary*, between two steps of the optimizer.
"""

from __future__ import annotations

import atexit
import dis
import math
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from slipway.options.common import AUTO
from slipway.protocol.errors import CODE_OF
from slipway.protocol.files import HONOURS_STOP, METRICS_FILE, SNAPSHOTS, STOP_FILE
from slipway.protocol.mistake import ConfigurationError, ExplainedError
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.protocol.printable import counted
from slipway.protocol.proof import ELSEWHERE
from slipway.train.loop.metrics import keep_first_metrics
from slipway.train.observe.sinks import Sinks, open_sinks
from slipway.train.observe.witness import is_proving, open_witness
from slipway.train.snapshots.job import JobSnapshots
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.parts import KEPT
from slipway.train.snapshots.state import set_random_states
from slipway.train.snapshots.writer import Writer
from slipway.train.user.contents import RunContents
from slipway.train.user.counts import Counts
from slipway.train.user.found import found_objects
from slipway.train.user.generators import all_random_states
from slipway.train.user.gradients import Gradients
from slipway.train.user.joining import end_badly, handle_stops, is_launched, is_under_torchrun, join
from slipway.train.user.live_models import has_static_graph, release_models
from slipway.train.user.objects import OF_SCRIPT, GeneratorState, Objects
from slipway.train.user.pause import Pause
from slipway.train.user.position import Position
from slipway.train.user.replaying import UserReplays
from slipway.train.user.script_places import ScriptPlaces
from slipway.train.user.script_tensors import ScriptTensors
from slipway.train.user.script_values import values_of_script
from slipway.train.user.sources import data_of_workers
from slipway.train.user.unrepeatable import Ahead, Modes, PastReads, explain_counter, explain_unset, listed
from slipway.train.user.unsaved import Unsaved, device_of
from slipway.train.user.values import describe
from slipway.train.worker.launcher import (
    NoProgressError,
    PeerError,
    UnhealthyError,
    WorkerOutcome,
    write_outcome,
)
from slipway.train.worker.rhythm import DiskRhythm, MemoryRhythm

PATIENCE = 1000  # boundaries with pending gradients after which the user is told
ALONE = 30.0  # seconds for which a rank at its end waits for the others before it says so
RUNS: list[ResumableRun] = []  # of this process
EXPLAINED = (ConfigurationError, NoProgressError, PeerError, UnhealthyError, OSError)
IN_EACH_LINE = {"step": "run.step", "time": "the time"}  # of what run.log writes
LEFT_BY_BREAK = {"POP_TOP", "POP_ITER"}  # what CPython does with an iterator when `break` or `return` leaves its loop


def resume(
    *,
    save_every: int | None = None,
    memory_every: int | None = None,
    keep: int = 2,
    snapshots: bool = True,
    ignore: Sequence[Any] = (),
    **objects: Any,
) -> ResumableRun:
    """Join the job, restore the newest snapshot that verifies into `objects`, and return the run.

    `objects`: whatever has `state_dict` and `load_state_dict` (models, wrapped in DistributedDataParallel or not, optimizers,
    schedulers, scalers), and random generators, by any name; lists and dictionaries of these, too. `save_every` and
    `memory_every`: steps between snapshots on the disk and in memory; None: as often as they cost next to nothing. `keep`: how
    many stay on the disk.
    `snapshots=False`, without objects: for a framework that saves and resumes by itself, stops, heartbeats and the outcome alone.
    `ignore`: objects that change and need not be saved, so that no line names them.

    With several processes `torch.distributed` must be initialized before. A mistake ends the process with one line.
    """
    with explained():
        if not snapshots and objects:
            raise ConfigurationError(
                f"slipway.resume(snapshots=False) saves nothing, and was called with {', '.join(objects)}. Leave one out."
            )
        require_first()
        for name, value in (("save_every", save_every), ("memory_every", memory_every)):
            if value is not None:
                require_count(f"{name}=", value)
        require_count("keep=", keep, 1)
        if is_proving(os.environ):  # each kill is to go back to the last boundary
            save_every, memory_every = (save_every if is_launched(os.environ) else 1), 1
        RUNS.append(ResumableRun(Objects(objects), save_every, memory_every, keep, snapshots, ignore))
    return RUNS[-1]


@contextmanager
def explained() -> Iterator[None]:
    """End the process with one line, and its reason written down, where something is wrong before there is a run."""
    try:
        yield
    except EXPLAINED as error:
        raise SystemExit(end_badly(error, None, WorkerOutcome(Word.FAILED, ""), os.environ)) from None


def require_first() -> None:
    """Raise ConfigurationError where this process has a run already, since both would have one folder of snapshots."""
    if any(run.open or run.keeps for run in RUNS):
        raise ConfigurationError(
            "slipway.resume was called a second time. A script has one run: pass all objects in one call. A search with several "
            "trials (optuna, hydra) needs one process per trial, and a folder for each: SLIPWAY_RUN_DIR."
        )


def require_count(name: str, value: Any, least: int = 0) -> int:
    """Return the number that was passed as `name`. Raises ConfigurationError where it is no whole one, or below `least`."""
    with suppress(TypeError):
        if (number := operator.index(value)) >= least:
            return number
    raise ConfigurationError(f"{name}{value!r}: a whole number is needed, {least} or more.")


def number_from(name: str, value: Any) -> float:
    """Return what was passed to `run.log`. Raises ConfigurationError where it is no number."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        shown = f"a tensor of {counted(value.numel(), 'value')}" if isinstance(value, torch.Tensor) else describe(value)
        raise ConfigurationError(
            f"run.log({name}=…): {shown}. A number is needed, or a tensor with a single value."
        ) from None


class ResumableRun:
    """A training that resumes. `state` holds plain values of the user's, which are saved and restored with everything else."""

    def __init__(
        self,
        objects: Objects,
        save_every: int | None,
        memory_every: int | None,
        keep: int,
        keeps: bool,
        ignored: Sequence[Any],
    ) -> None:
        """See `resume`; `keeps`: snapshots."""
        self.keeps = keeps
        passed = objects.named_of_kind(object)
        self._ignored, self._tensors = ignored, ScriptTensors(objects, ignored)
        if keeps:
            objects.named[OF_SCRIPT] = {"": self._tensors}
        self._objects, self._environ, self._process = objects, dict(os.environ), os.getpid()
        optimizers = objects.of_kind(torch.optim.Optimizer)
        self._gradients = Gradients(optimizers, lambda: self._stopping is not None or self._counts.next >= self._due)
        self._counts = Counts(self._gradients, by_steps=bool(optimizers))
        self._resumed = self._postponed = 0  # `number` of the snapshot; boundaries with pending gradients
        self._put_off = False  # a snapshot or stop that was due, until the epoch's code is done
        self._checked = False  # whether what run.state held at the first boundary could be saved
        self._turning, self._begun, self._over, self._failed = False, False, False, 0
        self._stopping: str | None = None
        self._sinks: Sinks | None = None
        self._context, self._heartbeat = context, _ = join(os.environ, device_of(objects), keeps)
        generators = [each.inner for each in objects.of_kind(GeneratorState)]
        self._pause, self._position = Pause(), Position(context, generators)
        self._reads, self._ahead = PastReads(), Ahead()
        self._replays = UserReplays(context, objects, keeps)
        self._passed_over: set[int] = set()  # signals
        self._handlers = handle_stops(context, os.environ, self._passed_over)
        self._contents = RunContents(
            context, objects, self._counts, self._position, self._pause, self._replays, self._warn
        )
        place = context.place
        self._disk = DiskRhythm(save_every, 0)
        self._unsaved = Unsaved(objects, self._tensors, context, ignored, keeps)
        Modes(objects, self._warn)
        atexit.register(self._leave)
        with self._told():
            context.require_same(
                {
                    "its device": context.device.type,
                    "save_every": save_every,
                    "memory_every": memory_every,
                    "snapshots": keeps,
                },
                "Call slipway.resume alike in all processes: with the same script and the same settings on all nodes.",
            )
            objects.collect()  # refuses now what could not be saved
            for odd in objects.others:
                context.say(f"note: {odd}, comes back as a plain dictionary after a restart")
            parts = objects.layouts.divide(context)
            self._snapshots = JobSnapshots(
                context,
                Writer(
                    parts.folder(place.run_dir / SNAPSHOTS),
                    max(keep, KEPT) if parts.several else keep,
                    lambda: place.superseded,
                    context.warn,
                ),
                MemoryBuffers(place.memory if parts.in_memory else (), context.warn, parts.sharing),
                MemoryRhythm(memory_every, 0),
                lambda tensors: True,  # a mask with -inf is no mistake
                parts,
            )
            if keeps:
                self._restore()
                if not self._counts.looped:  # else the loop does so where it begins
                    self._begin_tensors()
                self._unsaved.begin(self._told)
            self._witness = open_witness(
                os.environ,
                context,
                self._snapshots,
                self._contents.place,
                {**passed, "run.state": self.state},
                lambda: found_objects([*objects.all, *ignored]),
                lambda: values_of_script(objects.all),
            )
            if self._witness and not keeps:
                self._witness.begin(ELSEWHERE)

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return not self._over

    # What a loop calls

    @property
    def state(self) -> dict[str, Any]:
        """Plain values of the user's, which are saved and restored with everything else."""
        return self._contents.state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self._contents.state = values

    @property
    def step(self) -> int:
        """How many steps the (first) optimizer has done; without an optimizer, how many boundaries there were."""
        return self._counts.step

    @property
    def number(self) -> int:
        """By which snapshots are known: `step`, but that each boundary counts at which any optimizer stepped."""
        return self._counts.number

    @property
    def batch(self) -> int:
        """The number, from 0, of the batch that the loop is at: what `enumerate` counts, but that it is right after a resume."""
        return self._position.batch

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are not done, of `total`. The end of the loop is the end of the run."""
        return self._run_epochs(self._begin_loop("epochs", total))

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the iterations that are not done, of `total`. The end of the loop is the end of the run."""
        self._context.steps = total = self._begin_loop("steps", total)
        return self._run_steps(total)

    def batches(self, loader: Any, *, exact_augmentation: bool = False) -> Iterator[Any]:
        """Yield the batches of `loader` that were not trained on in this epoch, and call `set_epoch` where it has that.

        `exact_augmentation`: seed what each sample draws at random by the sample's position in the epoch, so that it does not
        depend on which process reads it.
        """
        context = self._context
        with self._told((ConfigurationError,)):  # what else is raised here, the data did
            self._unsaved.note_read(loader)
            self._contents.declared.note_batches(self._position.calls, loader)
            if not self._counts.loop and not self._position.used:
                self._begin_tensors()
            if self._witness and not self._counts.loop:
                self._witness.begin("batches")
            self._contents.begin_batches()
            self._reads.within = True
            self._ahead.begin()
            try:
                for batch in self._position.batches(
                    loader, self._contents.seed if exact_augmentation else None, self._turn_batch
                ):
                    if self._position.is_first and context.place.rank == 0:
                        self._warn(explain_counter(sys._getframe()))
                    self._hand_out("batches")
                    if self._witness:
                        self._witness.note_batch(batch, data_of_workers(loader))
                    self._reads.within = False
                    yield batch
                    self._reads.within = True
                    if self._position.draws_in_workers:
                        self._unsaved.note_draws(loader)
            finally:
                self._reads.within = False
                self._pause.rest("", context.device)
                if self._position.in_epochs:
                    self._contents.rest()

    def enumerate(self, loader: Any, *, exact_augmentation: bool = False) -> Iterator[tuple[int, Any]]:
        """Yield `run.batch` and the batch for each of `batches`."""
        for batch in self.batches(loader, exact_augmentation=exact_augmentation):
            yield self.batch, batch

    def boundary(self, step: int | None = None, *, saved: bool = True) -> bool:
        """Call this between two steps, on all ranks: snapshots that are due, the stop flag, the heartbeat.

        `epochs`, `steps` and `batches` do so themselves. Where a stop was requested, it saves and raises SystemExit, also in a
        validation. `step`: how many steps were done, where no optimizer is known. `saved=False`: the caller has to save first; so
        where a stop was requested this returns True, on all ranks at the same boundary, and the next boundary ends the process.
        """
        if self._over or os.getpid() != self._process:
            return False
        with self._told():
            if not self.keeps and self.state:
                raise ConfigurationError("run.state is saved by snapshots, and slipway.resume has snapshots=False.")
            if not self._counts.by_steps and (step is not None or self._turning or not self._counts.loop):
                self._counts.boundaries = self._counts.boundaries + 1 if step is None else step - self._counts.before
            stepped = self._gradients.stepped or not self._counts.by_steps
            moved = stepped and not self._pause.within
            if moved:
                self._note_moved()
                if not self._turning and self.keeps:
                    past = self._counts.loop == "epochs" and not self._position.reads
                    self._warn(self._reads.note_past(self.state) if past else "")
                if self.keeps:
                    self._warn(self._reads.end())
                    self._warn(self._gradients.leftover.explain())
            self._context.progress(self.number)
            self._context.beat(Phase.TRAIN)
            if not self._checked:
                self._checked = self._contents.check_state()  # refuses now what could not be saved
            self._unsaved.look(self._position.generators, bare=not self._counts.items)
            if self._witness and (moved or self._turning):
                self._witness.note_boundary(moved)
            if not stepped:
                self._unsaved.require_own_steps()
                if self._turning and not self._put_off:
                    return False
            self._snapshots.writer.check()
            word = self._finish_exchange()
            self._stopping = self._stopping or word
            if not moved and not self._turning:
                self._pause.note(stepped)
                if self._stopping and saved:
                    self._stop_in_pause(self._stopping, stepped)
            elif (self._stopping and saved) or self.number >= self._due:
                self._save_or_stop(saved)
            self._context.flag.begin_stop_exchange(place=2 * self._counts.items)
        return self._stopping is not None

    def _note_moved(self) -> None:
        """Note that the state is another one than at the last boundary."""
        self._begun, self._gradients.stepped = True, False
        self._contents.note_moved()

    def _turn_batch(self) -> None:
        self._ahead.turn(self._gradients)
        self._turn()

    def _turn(self) -> None:
        """The boundary between two iterations of `epochs`, `steps` or `batches`."""
        self._position.note_resumed()
        self._pause.within, self._turning = "", True
        self.boundary()
        self._turning = False

    def _hand_out(self, kind: str) -> None:
        """Note that the body of a loop over `epochs`, `steps` or `batches` begins."""
        self._unsaved.begin_loop()
        self._begun = True
        self._counts.items += 1
        (self._contents.rest if kind == "epochs" else self._contents.go_on)()
        self._pause.begin(kind, self._context.device)

    def _warn(self, text: str) -> None:
        if text and self._context.place.rank == 0:
            self._context.warn(text)

    def beat(self) -> None:
        """Show that a long validation goes on, where it calls no `boundary`: each process may do so by itself."""
        self._context.beat(Phase.EVALUATE)

    def log(self, **values: Any) -> None:
        """Write numbers of this step to metrics.jsonl and TensorBoard. Rank 0 writes; other ranks may call it, too."""
        with self._told():
            for name in IN_EACH_LINE.keys() & values.keys():
                raise ConfigurationError(
                    f"run.log({name}=…): each line of {METRICS_FILE} has {IN_EACH_LINE[name]} as {name}. Choose another name."
                )
            if self._witness:
                self._witness.note_log(values)
        if self._context.place.rank != 0 or self._over:
            return
        with self._told():
            numbers = {name: number_from(name, value) for name, value in values.items()}
            if self._sinks is None:
                self._sinks = open_sinks(self._context.place.run_dir, self.step, "", {}, self._context.warn)
            self._sinks.write(self.step, **numbers)
        self._counts.lines += 1

    def replay(self, work: Callable[..., Any], *batch: Any, every: int | str = AUTO) -> None:
        """Have all ranks compute the same micro-batch every few steps, and compare the results (docs/replicas.md).

        Call it for each micro-batch, on all ranks, before the training computes it. `work(*batch)` returns the loss of the
        micro-batch, or calls its `backward`; what it computes must depend on its arguments, the model and the global random
        generators alone. `every`: steps between replays, 0 for none, `auto`: as often as they cost 0.5 % of the time. Where a
        rank computes wrongly, the process ends, and the next attempt resumes from a snapshot that was made before.
        """
        if self._over or os.getpid() != self._process:
            return
        with self._told((*EXPLAINED, ExplainedError)), self._witness.aside() if self._witness else nullcontext():
            self._replays.check(self.number, work, batch, every, self._snapshots)

    def warm_up(self, work: Callable[[], Any]) -> None:
        """Call `work`, a forward and backward on any batch, and undo what it changed: gradients, buffers, frozen parameters (the
        forward of MoCo averages into some), random generators.

        DistributedDataParallel sums gradients in another order from its second backward on. Without this, a resumed job with
        more than two ranks does not reach the same bits. `work` may return a loss, whose backward is then called here. It is
        called twice if there is a DistributedDataParallel with static_graph=True, which changes the order one backward later.
        """
        device = self._context.device
        models = self._objects.of_kind(nn.Module)
        frozen = [each for model in models for each in model.parameters() if not each.requires_grad]
        tensors = [*(each for model in models for each in model.buffers()), *frozen]
        before, kept = all_random_states(device), [each.clone() for each in tensors]
        attributes = self._contents.attributes.changed()
        for _ in range(2 if has_static_graph() else 1):
            with self._witness.aside(warms_up=True) if self._witness else nullcontext():
                loss = work()
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            for model in models:
                model.zero_grad()
        set_random_states(device, before)
        self._contents.attributes.load(attributes)
        with torch.no_grad():
            for each, value in zip(tensors, kept, strict=True):
                each.copy_(value)

    def finish(self) -> None:
        """Write the last snapshot, wait for it, and note that the run is finished; for loops that only call `boundary`."""
        if self._over or os.getpid() != self._process:
            return
        with self._told():
            self._wait_for_ends()
            if not self.keeps:
                self._end(Word.FINISHED, "1 step" if self.step == 1 else f"{self.step} steps")
                return
            if self._gradients.stepped:
                self._note_moved()
            if not self._begun and self._snapshots.saved is not None:
                self._end(Word.FINISHED, f"was already finished at step {self.step}")
                return
            self._counts.finishing = True
            self._snapshots.saved = None  # what followed the last boundary may have changed anything
            self._context.beat(Phase.SAVE)
            self._snapshots.save(self._contents, live=True)
            self._end(Word.FINISHED, "1 step" if self.step == 1 else f"{self.step} steps")

    # The loops

    def _begin_loop(self, name: str, total: Any) -> int:
        with self._told():
            count = require_count(f"run.{name}: ", total)
            if self._counts.loop:
                raise ConfigurationError(
                    f"run.{name} was called after run.{self._counts.loop}, but a run has only one loop. Give the total to a "
                    "single call."
                )
        self._counts.loop, self._counts.total = name, count
        self._begin_tensors()
        loop, total_before = self._counts.finished or ("", 0)
        return 0 if loop == name and count <= total_before else count

    def _begin_tensors(self) -> None:
        if self.keeps:
            self._tensors.begin()
            script = self._unsaved.script = ScriptPlaces(self._objects, (*self._ignored, self.state))
            self._contents.attributes.begin_loop(script)

    def _run_epochs(self, total: int) -> Iterator[int]:
        position = self._position
        if self._witness:
            self._witness.begin("epochs")
        try:
            if position.epoch >= total:
                position.restore_random()  # what follows the loop draws what it drew
            while position.epoch < total:
                with self._told():
                    self._contents.begin_epoch()
                self._hand_out("epochs")
                yield position.epoch
                self._warn(self._ahead.end(self._gradients.stepped))
                position.end_epoch()
                self._contents.go_on()
                self._put_off = self._put_off and position.epoch < total
                self._turn()
        except GeneratorExit:
            self._finish_if_left(sys._getframe(1))
            raise
        self.finish()

    def _run_steps(self, total: int) -> Iterator[int]:
        if self._witness:
            self._witness.begin("steps")
        try:
            if self._counts.iteration >= total:
                self._position.restore_random()
            while self._counts.iteration < total:
                self._position.restore_random()
                self._position.note_resumed()
                self._hand_out("steps")
                yield self._counts.iteration
                self._counts.iteration += 1
                self._turn()
        except GeneratorExit:
            self._finish_if_left(sys._getframe(1))
            raise
        self.finish()

    def _finish_if_left(self, loop: Any) -> None:
        """Finish where `break` or `return` left the loop in that frame, and not where an exception did."""
        code = loop.f_code.co_code
        if dis.opname[code[loop.f_lasti]] in LEFT_BY_BREAK:
            if self._counts.loop == "steps":
                self._counts.iteration += 1
            try:
                self.finish()
            except SystemExit:  # which Python would print, and ignore
                self._leave()

    def _finish_exchange(self) -> str | None:
        """Return the word of a stop. Raises ConfigurationError where the ranks' loops are at different places."""
        word, _ = self._context.finish_stop_exchange()
        low, high = self._context.flag.places
        if low != high:
            differ = f"one had begun {low // 2} epochs, iterations and batches, and another {high // 2}"
            if low // 2 == high // 2:
                differ = "one had ended its loop, and another went on"
            raise ConfigurationError(
                f"The ranks are out of step: at the same exchange, {differ}. Give each rank the same number of batches, as "
                "DistributedSampler does, and leave the loop at the same place on all ranks."
            )
        return word

    def _wait_for_ends(self) -> None:
        """Return when all ranks have left their loops, at the same place. Raises ConfigurationError where one goes on."""
        flag, begun, told = self._context.flag, time.monotonic(), False
        self._finish_exchange()
        flag.begin_stop_exchange(place=2 * self._counts.items + 1)
        while not flag.done:
            if not told and time.monotonic() - begun > ALONE:
                told = True
                self._context.warn(
                    f"slipway: rank {self._context.place.rank} has ended its loop after {self.step} steps, and waits for a rank "
                    "that has not. Give each rank as many batches, and leave a loop on all ranks at the same place."
                )
            time.sleep(0.005)  # gloo's threads carry on the exchange; this only looks whether it is done
        self._finish_exchange()

    def _restore(self) -> None:
        context, place = self._context, self._context.place
        found = self._snapshots.find(place.resume)
        if found is not None:
            self._contents.load(found.snapshot, self._environ)
            self._resumed = self.number
            context.progress(self.number)
        if place.rank == 0:
            self._counts.lines = keep_first_metrics(place.run_dir / METRICS_FILE, self._counts.lines)
        self._snapshots.rhythm = MemoryRhythm(self._snapshots.rhythm.every, self.number)
        self._disk = DiskRhythm(self._disk.every, self.number)
        if found is not None:
            self._snapshots.settle(found, self._contents, due=False)

    # Boundaries and the end

    @property
    def _due(self) -> float:
        """The number of the next snapshot."""
        return min(self._disk.due, self._snapshots.rhythm.due) if self.keeps else math.inf

    def _save_or_stop(self, may_stop: bool) -> None:
        """Take the snapshots that are due, or stop, unless gradients are pending. After an epoch's last batch, both wait until
        the epoch's own code is done: it may read what the last iteration left in a variable, and a restart would have none.
        """
        begun = time.perf_counter()
        ending = self._position.is_last and not self._put_off  # not twice: each pass may have a single batch
        pending, wait = self._context.total(self._gradients.pending, ending or bool(self._contents.changed_for_good()))
        self._put_off = bool(wait)
        if self._put_off:
            return
        if pending:  # a rank's may be zeros, or its part may have got nothing
            self._postponed += 1
            if self._postponed == PATIENCE:
                self._context.warn(
                    f"warning: no snapshot for {PATIENCE} steps, because gradients were pending at each boundary: a backward "
                    "followed the last optimizer.step(). Call run.boundary() after optimizer.step()."
                )
            return
        self._postponed = 0
        self._unsaved.require_in_place()
        spent = time.perf_counter() - begun
        if self._stopping and may_stop:
            self._stop(self._stopping)
        if self.number >= self._disk.due:
            self._context.beat(Phase.SAVE)
            self._disk.begin(self.number)
            self._snapshots.save(self._contents)
            costs = self._context.gather(self._disk.costs(self._snapshots.writer.seconds))
            self._disk.go_on(self.number, costs)
            self._context.beat(Phase.TRAIN)
        self._snapshots.keep_in_memory(self._contents, spent)
        self._contents.drop()

    def _stop_in_pause(self, word: str, stepped: bool) -> None:
        """Stop at a boundary after which nothing has changed, or within an iteration, unless gradients are pending."""
        changed = self._contents.changed_for_good()
        pending, wait = self._context.total(self._gradients.pending, len(changed))
        if wait and not self._put_off:
            self._warn(
                f"note: the stop waits for the end of this epoch: its own code changed {listed(changed) or 'a model'}, and would "
                "do so twice"
            )
        self._put_off = bool(wait)
        if pending or wait or not self._pause.may_stop(stepped):
            return
        if self._pause.within and stepped:
            self._counts.move()
            self._counts.iteration += self._pause.within == "steps"
        elif self._pause.within == "batches" and not self._position.give_back():
            return
        self._unsaved.require_in_place()
        if said := self._pause.freeze(stepped, self._position.resumed_with, begun=self._begun):
            self._context.say(said)
        self._snapshots.saved = None  # what followed the last boundary may have changed anything
        self._stop(word)

    def _stop(self, word: str) -> None:
        self._context.beat(Phase.SAVE)
        if self.keeps:
            self._snapshots.save(self._contents, live=True)
        self._end(word, f"{word} at step {self.number}{', snapshot saved' if self.keeps else ''}")
        raise SystemExit(0 if is_under_torchrun(self._environ) else CODE_OF[Word(word)])

    def _end(self, word: str, message: str) -> None:
        """Wait until all snapshots are written and all ranks are here, then write this rank's outcome."""
        context, place = self._context, self._context.place
        self._snapshots.wait(self.number)
        self._snapshots.close()
        if self._sinks:
            self._sinks.close()
        context.beat(Phase.FINISH)
        context.conclude(word, message)
        context.wait_for_all()
        context.close()
        write_outcome(place.node_dir, place.rank, context.outcome)
        if is_launched(self._environ):
            if (
                context.is_local_leader and word == Word.FINISHED
            ):  # what follows in the script can be stopped by signals again
                (place.node_dir / HONOURS_STOP).unlink(missing_ok=True)
        else:
            context.say(f"slipway: {message}")
        self._over = True
        self._let_go()

    def _let_go(self) -> None:
        self._heartbeat.close()
        self._unsaved.close()
        self._reads.close()
        if lock := self._context.place.lock:
            lock.release()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def _told(self, kinds: tuple[type[Exception], ...] = EXPLAINED) -> Iterator[None]:
        """End the process with one line, and its reason written down, where a snapshot, a setting or the disk is at fault."""
        try:
            yield
        except kinds as error:
            self._over = True
            self._failed = end_badly(error, self._context.place, self._context.outcome, self._environ)
            self._let_go()
            raise SystemExit(self._failed) from None

    def _leave(self) -> None:
        """At the end of the process: let go of models and peers, since a live DDP object may abort it."""
        if os.getpid() != self._process:
            return
        if self._failed or self._is_ended_with_another:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            if self._failed:  # a loop left by `break` cannot raise
                os._exit(self._failed)
            self._let_go()
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not self._over and hasattr(self, "_snapshots"):  # a thread that still writes may abort the process, too
            if not hasattr(sys, "last_value"):  # an exception that nobody handled has told why
                if self._begun:
                    rank = self._context.place.rank
                    self._context.warn(
                        f"slipway: the process of rank {rank} ends before its loop, at step {self.step}."
                    )
            elif self._resumed and (why := explain_unset(sys.last_value, self._resumed)):
                self._context.warn(why)
            self._snapshots.close()
            self._let_go()  # so that a SIGTERM, sent because another rank failed, ends this process at once
        release_models()
        if self._over and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _is_ended_with_another(self) -> bool:
        """Whether torchrun sent SIGTERM because another rank failed: no stop was requested. The next attempt waits for this
        process, and what Python does at its end takes up to a second."""
        told = signal.SIGTERM in self._passed_over and not self._over
        return told and not (self._context.place.node_dir / STOP_FILE).exists()
