"""`fit`, the only training loop: a workload describes its task, and `fit` trains it on any number of processes.

Evaluation is part of it: every validation sample is evaluated once, whatever the number of processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from slipway.options import Common
from slipway.protocol.files import METRICS_FILE
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.train.loop.arithmetic import NonFiniteError, Precision
from slipway.train.loop.metrics import (
    Progress,
    keep_metrics,
    peak_memory,
    read_evaluation,
    write_options,
)
from slipway.train.loop.saving import go_back, is_save_due, keep_in_memory, resume, save, wait_for_writers
from slipway.train.loop.step import take_step
from slipway.train.loop.training import Training, begin_training
from slipway.train.models.flops import utilisation
from slipway.train.observe.replay import WrongArithmeticError
from slipway.train.observe.replicas import ReplicasDifferError
from slipway.train.observe.sinks import Sinks, open_sinks
from slipway.train.observe.witness import open_witness
from slipway.train.task import Task, Validation, evaluating
from slipway.train.worker.context import Context
from slipway.train.worker.rhythm import MemoryRhythm

MOMENT = 0.5  # seconds; a rank that waits longer for data reports it


@dataclass(frozen=True)
class TrainingResult:
    """How training ended: `finished`, `stopped` or `cancelled`, at which step, with the last evaluation and sample."""

    outcome: str
    step: int
    evaluation: Mapping[str, float]
    sample: str = ""


def fit(task: Task, options: Common, context: Context) -> TrainingResult:
    """Train `task` until its last step or until the stop flag, save, evaluate, and report the outcome to `context`.

    Raises ConfigurationError for a batch size that cannot be divided, NoProgressError for too many steps that are not finite,
    SnapshotError and OSError if a snapshot cannot be read or written.
    """
    training = begin_training(task, options, context)
    try:
        resumed = resume(training, context.place.resume)
        if resumed and training.step >= training.total and is_evaluated(training):
            wait_for_writers(training)
            context.say(f"already finished at step {training.step}; type a larger --steps or --epochs to train on")
            context.conclude(Word.FINISHED, f"was already finished at step {training.step}")
            return TrainingResult(Word.FINISHED, training.step, {})
        objects = {"model": task.model, "optimizer": task.optimizer, "scaler": training.scaler}
        training.witness = open_witness(os.environ, context, training.snapshots, lambda: place_of(training), objects)
        outcome = train_through(training)
        context.beat(Phase.FINISH)
        note_outcome(training, outcome)
        return TrainingResult(outcome, training.step, training.evaluation, training.sample)
    finally:
        training.tracing.close()
        training.loader.close()
        training.snapshots.close()


def train_through(training: Training) -> str:
    """Train to the end, going back to the newest snapshot if something goes wrong. Returns the outcome."""
    phase, gone_back = Phase.FIRST_STEP, False
    while True:
        try:
            return train_from_here(training, phase)
        except (NonFiniteError, ReplicasDifferError, WrongArithmeticError) as error:
            training.tracing.finish("training returned to a snapshot")
            go_back(training, error, gone_back)
            phase, gone_back = Phase.TRAIN, gone_back or isinstance(error, NonFiniteError)


def train_from_here(training: Training, phase: Phase) -> str:
    """Train from the current step, with metrics that begin there; the outcome. `phase` is what the first step is reported as."""
    context, task = training.context, training.task
    first, file = context.place.rank == 0, context.place.run_dir / METRICS_FILE
    if first:
        keep_metrics(file, training.step)
        write_options(context.place.run_dir, task.name, training.options, batch_size=training.batch_size)
    asked = training.options.log_to
    metrics = open_sinks(
        context.place.run_dir if first else None, training.step, asked, training.options.values(), context.warn
    )
    units = training.batch_size * task.units_per_sample
    progress = Progress(
        training.total, training.step, context.is_local_leader, first and context.place.bar, task.unit, units
    )
    training.loader.start(training.position)
    training.snapshots.rhythm = MemoryRhythm(training.snapshots.rhythm.every, training.step)
    try:
        return take_steps(training, metrics, progress, phase)
    finally:
        progress.close()
        metrics.close()


def take_steps(training: Training, metrics: Sinks, progress: Progress, phase: Phase) -> str:
    """Take all steps, with everything that happens between them. Returns the outcome."""
    options, context, witness = training.options, training.context, training.witness
    training.stragglers.forget()
    word, _ = context.agree()  # before the first step, which may compile for minutes
    if word is None and (training.step or training.task.judged_before) and not is_evaluated(training):
        word = evaluate(training, metrics, progress)
    if word is None:
        context.beat(phase)
        with witness.aside(warms_up=True) if witness else nullcontext():
            training.parallel.warm_up_ddp(training.loader.example)
        training.stragglers.own_time.settle(all_of_them=options.find_unused_parameters)
        context.begin_stop_exchange(late=not training.loader.ready())
    if witness:
        witness.begin("fit")
    begun = training.step
    while training.step < training.total and word is None:
        word = next_word(training)
        if word is not None:
            break
        training.tracing.begin(training.step)
        rate = take_step(training, phase)
        phase = Phase.TRAIN
        context.beat(phase)
        enforce_budget(training, training.numbers.late())
        training.verification.check(training.step)
        with witness.aside() if witness else nullcontext():
            training.replays.check(training.step)
        training.stragglers.check()
        progress.advance()
        ended_epoch = training.position % training.task.samples < training.batch_size
        last = training.step == training.total
        if last or ended_epoch or training.step % options.log_every == 0:
            report_step(training, rate, metrics, progress, ended_epoch)
        elif training.step == begun + 1:
            progress.begin(training.step, options.log_every)
        if training.tracing.poll(ends_trace(training)):
            progress.restart(training.step)
        if is_save_due(training):
            enforce_budget(training, int(training.numbers.in_row))
            context.beat(Phase.SAVE)
            save(training, live=last)
            context.beat(Phase.TRAIN)
            progress.restart(training.step)
        if not last:
            keep_in_memory(training)
        if witness:
            witness.note_boundary()
        if is_due(training):
            word = evaluate(training, metrics, progress)
            context.beat(Phase.TRAIN)
            progress.restart(training.step)
    training.stragglers.forget()
    training.tracing.finish("training was stopped")
    save(training, live=True)
    wait_for_writers(training)
    return word or Word.FINISHED


def place_of(training: Training) -> dict[str, Any]:
    """Return the position, for the witness of a proving run."""
    samples, batch = training.task.samples, training.batch_size
    epoch, position = divmod(training.position, samples)
    return {"step": training.step, "epoch": epoch, "batches": position // batch, "length": math.ceil(samples / batch)}


def ends_trace(training: Training) -> str:
    """Return what follows this step and belongs to no step's trace; empty if the next step follows."""
    if training.step == training.total:
        return "it was the last step"
    return "a snapshot follows" if is_save_due(training) else "an evaluation follows" if is_due(training) else ""


def next_word(training: Training) -> str | None:
    """Return what the ranks agreed on during the previous step; if nothing, return once all have the next step's data.

    Raises OSError if a snapshot could not be written meanwhile.
    """
    training.snapshots.writer.check()
    word, late = training.context.finish_stop_exchange()
    while late and word is None:
        mine = not training.stragglers.own_time.wait_for_data(lambda: training.loader.ready(within=MOMENT))
        if mine:
            training.context.beat(Phase.DATA)
        word, late = training.context.agree(late=mine)
    return word


def enforce_budget(training: Training, left_out: int) -> None:
    """Raise NonFiniteError, on all ranks, if more steps in a row were skipped than the user allows."""
    if left_out > training.options.nonfinite_budget:
        steps = "1 step" if left_out == 1 else f"{left_out} steps in a row"
        raise NonFiniteError(f"loss or gradient were not finite in {steps}, up to step {training.step}")


def report_step(training: Training, rate: float, metrics: Sinks, progress: Progress, ended_epoch: bool) -> None:
    """Show this process's mean loss since the last report, and write the mean over all processes to the metrics."""
    task, numbers, context = training.task, training.numbers, training.context
    skipped = int(numbers.skipped)
    taken = max(1, training.step - training.reported - skipped)
    own = float(numbers.losses) / taken if skipped < training.step - training.reported else math.nan
    loss = float(context.sum(numbers.losses.clone())) / taken / context.place.world_size
    training.reported = training.step
    numbers.restart()
    epochs = training.position / task.samples
    text = f"lr {rate:.3g}"
    if skipped:
        text += f"  {skipped} step{'s' if skipped > 1 else ''} left out: not finite"
    speed = progress.speed(training.step)
    values = {"epoch": round(epochs, 4), "lr": rate, f"{task.unit}_per_second": round(speed, 1)}
    if share := utilisation(task.flops_per_unit * speed / context.place.world_size, context.device):
        text += f"  {share:.1%} MFU"
        values["mfu"] = round(share, 4)
    if slow := training.stragglers.found:
        text += f"  {slow}"
        values |= {"slow_rank": slow.rank, "slower": round(slow.slower, 3)}
    values["memory_peak_gib"] = round(peak_memory(context.device), 3)
    done = f"epoch {int(epochs)} done  " if ended_epoch else ""
    progress.report(training.step, f"{done}loss {own:.4f}", f"{text}  {values['memory_peak_gib']:.1f} GiB")
    if math.isfinite(norm := float(training.gradient)):  # the last step may have been skipped
        values["grad_norm"] = norm
    values |= {"skipped": skipped} if skipped else {}
    values |= {} if math.isnan(own) else {"loss": loss}
    metrics.write(training.step, **values)


def is_due(training: Training) -> bool:
    """Whether the model is evaluated at this step."""
    every = training.options.eval_every
    if training.step == 0:
        return training.task.judged_before
    return training.step >= training.total or bool(every and training.step % every == 0)


def is_evaluated(training: Training) -> bool:
    """Whether this step's evaluation is done or not due: a stop may have come between snapshot and evaluation."""
    context, step = training.context, training.step
    file = context.place.run_dir / METRICS_FILE
    done = not is_due(training) or (context.place.rank == 0 and read_evaluation(file, step).get("step") == step)
    return bool(context.share(torch.tensor([done])))


def evaluate(training: Training, metrics: Sinks, progress: Progress) -> str | None:
    """Evaluate the model on the validation samples, divided among the processes. Returns the word if a stop came."""
    task, context, place = training.task, training.context, training.context.place
    word: str | None = None

    def turn() -> bool:
        nonlocal word
        word, _ = context.finish_stop_exchange()
        if word is None:
            context.beat(Phase.EVALUATE)
            # What the last batch exchanges also counts for the next step.
            context.begin_stop_exchange(late=not training.loader.ready())
        return word is None

    parallel, precision = training.parallel, training.precision
    parallel.align()
    results = evaluate_model(
        task.validation, parallel.judged, precision, context.device, parallel.share, context.sum, turn
    )
    if results is None:
        return word
    training.evaluation = results
    metrics.write(training.step, **training.evaluation)
    if place.rank == 0:
        progress.say(f"step {training.step}/{training.total}  {headline(results)}")
        if not math.isfinite(results["val_loss"]):
            context.warn(f"the validation loss is not finite at step {training.step}; {NonFiniteError.advice}")
    if task.sample and parallel.share[0] == 0:
        training.sample = task.sample()
        metrics.write_text(training.step, "sample", training.sample)
    if place.rank == 0:
        for name, picture in (task.pictures() if task.pictures else {}).items():
            metrics.write_picture(training.step, name, picture)
    return None


@torch.no_grad()
def evaluate_model(
    validation: Validation,
    model: nn.Module,
    precision: Precision,
    device: torch.device,
    share: tuple[int, int] = (0, 1),
    add: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
    turn: Callable[[], bool] = lambda: True,
) -> dict[str, float] | None:
    """Return the named results of `model` on the validation samples, or None if `turn` returned False.

    `share` is (number, shares): this process evaluates sample `number` and every `shares`-th after it. `add` returns the sums
    over all processes, a float64 tensor of shape (k,) on `device`. `turn` is called before each batch, equally often on all
    processes.
    """
    number, shares = share
    mine = torch.arange(min(number, validation.samples), validation.samples, shares, device=device)
    parts = []
    with evaluating(model):
        # The same number of batches on all processes, so that they agree on stopping; the last may be empty.
        for start in range(0, math.ceil(validation.samples / shares), validation.batch_size):
            if not turn():
                return None
            indices = mine[start : start + validation.batch_size]
            with precision.autocast():
                parts.append(validation.sums(model, validation.batch(indices)))
    *totals, count = add(torch.stack(parts).sum(0)).tolist()
    return validation.results([total / count for total in totals])


def headline(evaluation: Mapping[str, float]) -> str:
    """Format results in a line, without those of parts, which are named `part/name`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in evaluation.items() if "/" not in name)


def note_outcome(training: Training, outcome: str) -> None:
    """Report the outcome once every rank is here."""
    context = training.context
    context.wait_for_all()
    if outcome == Word.FINISHED:
        steps = "1 step" if training.step == 1 else f"{training.step} steps"
        context.conclude(outcome, f"{steps}  {headline(training.evaluation)}")
    else:
        context.conclude(outcome, f"{outcome} at step {training.step} of {training.total}, snapshot saved")
