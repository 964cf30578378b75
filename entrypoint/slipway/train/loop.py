"""`fit`: the only training loop. A workload describes its task, this trains it on any number of processes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.train.charts import Charts
from slipway.train.compiler import decide_compile
from slipway.train.context import Context
from slipway.train.data import Sampler
from slipway.train.metrics import MetricsFile, Progress, keep_metrics, peak_memory
from slipway.train.options import Common, ConfigurationError
from slipway.train.outcome import NoProgressError
from slipway.train.precision import Precision, read_precision
from slipway.train.resume import SNAPSHOTS, share_snapshot
from slipway.train.snapshot import Snapshot, save_snapshot
from slipway.train.state import (
    load_model,
    load_optimizer_state,
    optimizer_state,
    random_states,
    restore_random_states,
)

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Validation:
    """How a model is judged. Every sample counts once, whatever the number of processes."""

    samples: int
    batch_size: int  # per process; nothing but memory and speed depend on it
    batch: Callable[[torch.Tensor], Batch]
    # (model, batch) -> sums over the batch, float64, shape (k,); the last one is what the others are divided by
    sums: Callable[[nn.Module, Batch], torch.Tensor]
    # the k - 1 means -> named results; `val_loss` is among them
    results: Callable[[list[float]], dict[str, float]]


@dataclass(frozen=True)
class Task:
    """What a workload trains. Sample indices arrive as int64 tensors of shape (n,) on the context's device."""

    name: str
    model: nn.Module  # the same on all ranks, already on the context's device
    description: Mapping[str, Any]  # JSON values that tell this model from others; kept in snapshots
    samples: int  # in an epoch
    batch: Callable[[torch.Tensor], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]  # mean over the batch
    optimizer: torch.optim.Optimizer
    validation: Validation
    data: str = ""  # which data, so that a resumed run can tell whether they are still the same
    unit: str = "samples"  # of throughput
    units_per_sample: int = 1
    sample: Callable[[], str] | None = None  # a text that the model writes, at each evaluation


@dataclass(frozen=True)
class Result:
    """How training ended: `finished`, `stopped` or `cancelled`, at which step, the last evaluation and sample."""

    outcome: str
    step: int
    evaluation: Mapping[str, float]
    sample: str = ""


@dataclass
class Training:
    """A task under way."""

    task: Task
    options: Common
    context: Context
    precision: Precision
    batch_size: int
    total: int  # steps
    model: nn.Module  # compiled if asked for
    parallel: nn.Module  # averages gradients over the processes
    scaler: torch.amp.grad_scaler.GradScaler
    sampler: Sampler
    losses: torch.Tensor  # sum over the steps since the last report, on the device
    gradient: torch.Tensor  # norm at the last step, before it was clipped, on the device
    step: int = 0
    position: int = 0  # in the sampler's stream, in samples
    reported: int = 0  # the step of the last report
    saved: int = -1
    evaluation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sample: str = ""


def fit(task: Task, options: Common, context: Context) -> Result:
    """Train `task` until its last step or until the stop flag, save, evaluate, and note the outcome in `context`.

    Raises ConfigurationError for a batch that cannot be divided, NoProgressError for a loss that is not finite,
    SnapshotError and OSError where a snapshot cannot be read or written.
    """
    training = prepare(task, options, context)
    if resume(training) and training.step >= training.total:
        context.say(f"already finished at step {training.step}; type a larger --steps or --epochs to train on")
        context.conclude("finished", f"was already finished at step {training.step}")
        return Result("finished", training.step, {})
    first, file = context.place.rank == 0, context.place.run_dir / "metrics.jsonl"
    if first:
        keep_metrics(file, training.step)
        write_options(training)
    charts = Charts(file.with_name("tensorboard"), training.step, context.warn) if first else None
    metrics = MetricsFile(file if first else None, charts)
    units = training.batch_size * task.units_per_sample
    progress = Progress(training.total, training.step, context.speaks, first and context.place.bar, task.unit, units)
    try:
        outcome = train(training, metrics, progress)
    finally:
        progress.close()
        metrics.close()
    conclude(training, outcome)
    return Result(outcome, training.step, training.evaluation, training.sample)


def prepare(task: Task, options: Common, context: Context) -> Training:
    """Everything that training needs, at step 0."""
    batch_size = divide_batch(options, context)
    precision = read_precision(options.precision, context.device)
    cuda = context.device.type == "cuda"
    compiled = decide_compile(options.compile, context.device.type, os.environ)
    model: nn.Module = torch.compile(task.model) if compiled else task.model  # type: ignore[assignment]
    parallel = model
    if context.place.world_size > 1:
        parallel = DistributedDataParallel(
            model, device_ids=[context.device.index] if cuda else None, gradient_as_bucket_view=True
        )
    total = options.steps or math.ceil((options.epochs or 1) * task.samples / batch_size)
    context.say(
        f"{task.name}: {sum(parameter.numel() for parameter in task.model.parameters()):,} parameters, "
        f"{task.samples:,} samples, {total:,} steps of {batch_size} samples, {precision.name} on {context.device.type}"
    )
    # Weights are made from the seed itself, on all ranks alike; dropout differs from rank to rank.
    torch.manual_seed(options.seed + 1 + context.place.rank)
    return Training(
        task, options, context, precision, batch_size, total, model, parallel, precision.scaler(),
        Sampler(task.samples, options.seed), torch.zeros((), device=context.device),
        torch.zeros((), device=context.device),
    )  # fmt: skip


def divide_batch(options: Common, context: Context) -> int:
    """The global batch size: the user's own, or the default made divisible. Raises ConfigurationError."""
    parts = context.place.world_size * options.accumulate
    if options.batch_size % parts == 0:
        return options.batch_size
    above = math.ceil(options.batch_size / parts) * parts
    if "batch_size" not in options.given:
        context.say(f"batch size {above} instead of {options.batch_size}, to divide it among {parts} parts")
        return above
    below = above - parts
    raise ConfigurationError(
        f"--batch-size {options.batch_size} counts all processes, and {context.place.world_size} processes × "
        f"--accumulate {options.accumulate} do not divide it. Type --batch-size "
        f"{f'{below} or {above}' if below else above}."
    )


def train(training: Training, metrics: MetricsFile, progress: Progress) -> str:
    """Take all steps, with everything that happens between them. Returns the outcome."""
    options, context = training.options, training.context
    while training.step < training.total:
        word = context.stop_requested()
        if word is not None:
            save(training)
            return word
        rate = take_step(training)
        progress.advance()
        ended_epoch = training.position % training.task.samples < training.batch_size
        last = training.step == training.total
        if last or ended_epoch or training.step % options.log_every == 0:
            report(training, rate, metrics, progress, ended_epoch)
        if last or (options.save_every and training.step % options.save_every == 0):
            save(training)
            progress.restart(training.step)
        if last or (options.eval_every and training.step % options.eval_every == 0):
            evaluate(training, metrics, progress)
            progress.restart(training.step)
    return "finished"


def take_step(training: Training) -> float:
    """One optimizer step over a global batch. Returns its learning rate. Never waits for a GPU."""
    options, optimizer = training.options, training.task.optimizer
    rate = learning_rate(options, training.step, training.total)
    for group in optimizer.param_groups:
        group["lr"] = rate
    parts = local_parts(training)
    for number, indices in enumerate(parts, start=1):
        last = number == len(parts)
        with nullcontext() if last else no_sync(training.parallel):
            with training.precision.autocast():
                loss = training.task.loss(training.parallel, training.task.batch(indices)) / len(parts)
            training.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        training.losses += loss.detach()
    training.scaler.unscale_(optimizer)
    parameters = list(training.task.model.parameters())
    training.gradient = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if options.clip:
        nn.utils.clip_grads_with_norm_(parameters, options.clip, training.gradient)
    training.scaler.step(optimizer)
    training.scaler.update()
    optimizer.zero_grad()
    training.step += 1
    training.position += training.batch_size
    training.context.progress(training.step)
    return rate


def local_parts(training: Training) -> list[torch.Tensor]:
    """This process's sample indices of the next global batch, on the device, one tensor per accumulation part."""
    place, count = training.context.place, training.options.accumulate
    indices = torch.from_numpy(training.sampler.indices(training.position, training.batch_size))
    mine = indices.view(count, place.world_size, -1)[:, place.rank].contiguous()
    if training.context.device.type == "cuda":
        mine = mine.pin_memory().to(training.context.device, non_blocking=True)
    return list(mine)


def no_sync(parallel: nn.Module) -> Any:
    """A context in which gradients stay on this process, to be averaged with the last part."""
    return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()


def learning_rate(options: Common, step: int, total: int) -> float:
    """The rate of step `step` (from 0): a linear rise over the warm-up, then constant or a cosine to a tenth."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    if options.schedule == "constant":
        return options.lr
    share = (step - options.warmup) / max(1, total - options.warmup)
    return options.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, share))))


def report(training: Training, rate: float, metrics: MetricsFile, progress: Progress, ended_epoch: bool) -> None:
    """Show this process's own mean loss since the last report, and write down the mean of all processes.

    Raises NoProgressError, on all ranks, where that is not finite.
    """
    task, place = training.task, training.context.place
    own = training.losses / (training.step - training.reported)
    loss = float(training.context.sum(own.clone())) / place.world_size
    training.losses.zero_()
    training.reported = training.step
    if not math.isfinite(loss):
        raise NoProgressError(f"the loss is {loss} at step {training.step}; type a smaller --lr or a positive --clip")
    epochs = training.position / task.samples
    text = f"loss {float(own):.4f}  lr {rate:.3g}"
    if ended_epoch:
        text = f"epoch {int(epochs)} done  {text}"
    speed = progress.report(training.step, text)
    values = {"epoch": round(epochs, 4), "loss": loss, "lr": rate, f"{task.unit}_per_second": round(speed, 1)}
    values["memory_peak_gib"] = round(peak_memory(training.context.device), 3)
    if math.isfinite(norm := float(training.gradient)):  # an fp16 step that overflowed has none; the scaler skips it
        values["grad_norm"] = norm
    metrics.write(training.step, **values)


@torch.no_grad()
def evaluate(training: Training, metrics: MetricsFile, progress: Progress) -> None:
    """Judge the model on the validation samples, shared out over the processes."""
    validation, context = training.task.validation, training.context
    mine = torch.arange(context.place.rank, validation.samples, context.place.world_size, device=context.device)
    parts = []
    training.model.eval()
    for indices in torch.split(mine, validation.batch_size):
        with training.precision.autocast():
            parts.append(validation.sums(training.model, validation.batch(indices)))
    training.model.train()
    *totals, count = context.sum(torch.stack(parts).sum(0)).tolist()
    training.evaluation = validation.results([total / count for total in totals])
    metrics.write(training.step, **training.evaluation)
    shown = "  ".join(f"{name} {value:.4f}" for name, value in training.evaluation.items())
    if context.place.rank == 0:
        progress.say(f"step {training.step}/{training.total}  {shown}")
        if training.task.sample:
            training.sample = training.task.sample()
            metrics.write_text(training.step, "sample", training.sample)


def save(training: Training) -> None:
    """Write a snapshot on rank 0, and return on all ranks once it is there."""
    context, step = training.context, training.step
    random = random_states(context)
    name = ""
    if context.place.rank == 0 and training.saved != step:
        tensors, values = optimizer_state(training.task.optimizer)
        state = {
            "workload": training.task.name,
            "model": dict(training.task.description),
            "data": training.task.data,
            "position": training.position,
            "world_size": context.place.world_size,
            "optimizer": values,
            "scaler": training.scaler.state_dict(),
        }
        snapshot = Snapshot(
            step, state, {"model": training.task.model.state_dict(), "optimizer": tensors, "rng": random}
        )
        name = save_snapshot(context.place.run_dir / SNAPSHOTS, snapshot, training.options.keep).name
    context.progress(step, context.share_text(name))
    training.saved = step


def resume(training: Training) -> bool:
    """Go on from the snapshot that the context asks for. Returns whether there was one."""
    snapshot = share_snapshot(training.context)
    if snapshot is None:
        return False
    if snapshot.state["workload"] != training.task.name:
        raise ConfigurationError(
            f"The snapshot to resume from is of the workload {snapshot.state['workload']}, and this is {training.task.name}."
        )
    load_model(training.task.model, snapshot, training.task.description)
    if snapshot.state["data"] != training.task.data:
        training.context.say(f"note: so far it was trained on {snapshot.state['data']}, now on {training.task.data}")
    load_optimizer_state(training.task.optimizer, snapshot.tensors["optimizer"], snapshot.state["optimizer"])
    training.scaler.load_state_dict(snapshot.state["scaler"])
    training.step = training.reported = snapshot.step
    training.position = snapshot.state["position"]
    training.saved = snapshot.step if training.context.place.resume == "auto" else -1
    restore_random_states(
        training.context,
        snapshot.tensors["rng"],
        training.options.seed + 1 + training.context.place.rank + snapshot.step,
    )
    return True


def write_options(training: Training) -> None:
    """Write the options, as they were resolved, to `options.json`."""
    values = dataclasses.asdict(training.options) | {"batch_size": training.batch_size}
    values["given"] = sorted(training.options.given)
    (training.context.place.run_dir / "options.json").write_text(json.dumps(values, indent=1))


def conclude(training: Training, outcome: str) -> None:
    """Note the outcome, once every rank is here."""
    context = training.context
    context.wait_for_all()
    if outcome == "finished":
        shown = "  ".join(f"{name} {value:.4f}" for name, value in training.evaluation.items())
        context.conclude(outcome, f"{training.step} steps  {shown}")
    else:
        context.conclude(outcome, f"{outcome} at step {training.step} of {training.total}, snapshot saved")
