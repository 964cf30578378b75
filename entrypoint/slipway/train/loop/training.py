"""A task under way: what it consists of, and how it is made."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from slipway.options import Common
from slipway.protocol.files import SNAPSHOTS
from slipway.protocol.printable import counted
from slipway.train.loop.arithmetic import Precision, StepCounts, are_finite, decide_compile, read_precision
from slipway.train.loop.loader import Loader, Sampler
from slipway.train.loop.requirements import require_saveable
from slipway.train.observe.comparability import kinds_of_ranks, require_replayable
from slipway.train.observe.findings import was_found
from slipway.train.observe.micro_batches import ReplayError
from slipway.train.observe.own_time import OwnTime
from slipway.train.observe.replay import Replays
from slipway.train.observe.replicas import Verification, replicated
from slipway.train.observe.stragglers import Stragglers
from slipway.train.observe.tracing import Tracing
from slipway.train.observe.witness import Witness, is_proving
from slipway.train.parallel.data_parallel import DataParallel, Parallel, compute_alone
from slipway.train.parallel.pipeline import PipelineParallel
from slipway.train.snapshots.job import JobSnapshots
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.parts import single_part
from slipway.train.snapshots.writer import Writer
from slipway.train.task import Task
from slipway.train.worker.context import Context
from slipway.train.worker.rhythm import MemoryRhythm


@dataclass
class Training:
    """A task under way."""

    task: Task
    options: Common
    context: Context
    precision: Precision
    batch_size: int
    total: int  # steps
    parallel: Parallel  # how the processes share the work
    scaler: torch.amp.grad_scaler.GradScaler
    loader: Loader
    snapshots: JobSnapshots
    numbers: StepCounts
    verification: Verification
    replays: Replays
    stragglers: Stragglers
    tracing: Tracing
    gradient: torch.Tensor  # norm at the last step, before it was clipped, on the device
    parameters: Mapping[str, nn.Parameter]  # of the task's model
    buffers: Sequence[torch.Tensor]
    step: int = 0
    position: int = 0  # in the sampler's stream, in samples
    witness: Witness | None = None  # in a proving run
    reported: int = 0  # the step of the last report
    evaluation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sample: str = ""


def begin_training(task: Task, options: Common, context: Context) -> Training:
    """Everything that training needs, at step 0. Raises ConfigurationError for a batch that cannot be divided."""
    require_saveable(task)
    batch_size = divide_batch(options, context, task.split.pipelines if task.split else context.place.world_size)
    parts = (task.split.pipelines if task.split else context.place.world_size) * options.accumulate
    precision = read_precision(options.precision, context.device)
    agree_on_task(task, options, precision, context)
    scaler = precision.scaler()
    wrapped = context.place.world_size > 1 and not task.split  # in DistributedDataParallel
    bucket_mb = options.bucket_mb if wrapped else None
    compiled = decide_compile(options.compile, context.device.type, os.environ, bucket_mb)
    model: nn.Module = torch.compile(task.model) if compiled else task.model  # type: ignore[assignment]
    kind = PipelineParallel if task.split else DataParallel
    parallel: Parallel = kind(task, model, options, context, precision, scaler)
    allow_left_out_steps(task.optimizer)
    total = options.steps or math.ceil((options.epochs or 1) * task.samples / batch_size)
    context.steps = total
    samples, share = counted(task.samples, "sample"), batch_size // parallel.share[1]
    context.say(
        f"{task.name}: {counted(parallel.parameters, 'parameter')}{parallel.described}, {samples}, {counted(total, 'step')} "
        f"of {counted(batch_size, 'sample')} ({share} per {'pipeline' if task.split else 'process'}), "
        f"{precision.name} on {context.device.type}"
    )
    if context.place.rank == 0:
        warn_of_room(task.model, context.place.run_dir, context.say)
    if batch_size > task.samples:
        context.say(
            f"warning: --batch-size {batch_size} is more than the data ({samples}), so every step uses "
            f"some of them twice; use more data, or type --batch-size {max(1, task.samples // parts) * parts}"
        )
    # Weights are made from the seed itself, on all ranks alike; dropout differs from rank to rank.
    torch.manual_seed(options.seed + 1 + context.place.rank)
    loader = Loader(
        task.batch, Sampler(task.samples, options.seed), batch_size, options.accumulate,
        parallel.share, torch.device("cpu") if task.on_host else context.device, options.workers,
    )  # fmt: skip
    return Training(
        task=task, options=options, context=context, precision=precision, batch_size=batch_size, total=total,
        parallel=parallel, scaler=scaler, loader=loader,
        snapshots=JobSnapshots(
            context,
            Writer(context.place.run_dir / SNAPSHOTS, options.keep, lambda: context.place.superseded, context.warn),
            MemoryBuffers(() if task.split or context.place.local_rank else context.place.memory, context.warn),
            MemoryRhythm(0 if task.split else 1 if is_proving(os.environ) else options.memory_every, 0),
            are_finite,
            single_part(context.place),
        ),
        numbers=StepCounts(context.device),
        # The ranks of a pipeline hold different parts.
        verification=Verification(
            context, lambda: replicated(task.model, task.optimizer), 0 if task.split else options.verify_every
        ),
        replays=make_replays(task, precision, scaler, options, context),
        stragglers=Stragglers(
            context,
            context.side if wrapped else None,
            OwnTime(task.model.parameters() if wrapped else (), context.device),
        ),
        tracing=Tracing(context),
        gradient=torch.zeros((), device=context.device), parameters=dict(task.model.named_parameters()),
        buffers=list(task.model.buffers()),
    )  # fmt: skip


def warn_of_room(model: nn.Module, folder: Path, say: Callable[[str], None]) -> None:
    """Say before the training that no snapshot will fit on the disk: each has at least the weights."""
    with suppress(OSError):
        free, needed = shutil.disk_usage(folder).free, sum(each.nbytes for each in model.state_dict().values())
        if free < needed:
            say(
                f"warning: {free / 1e6:,.1f} MB are free at {folder}, and the weights in a snapshot alone take "
                f"{needed / 1e6:,.1f} MB: free some space, or choose another disk with --runs or --run-dir"
            )


def make_replays(
    task: Task, precision: Precision, scaler: torch.amp.grad_scaler.GradScaler, options: Common, context: Context
) -> Replays:
    """Prepare the replays of micro-batches, none where the options or the model forbid them; a line says why."""
    every, kinds = options.replay_every, list[int]()
    if every and context.side is not None:
        try:
            require_replayable(task.model, task.split is not None)
            kinds = kinds_of_ranks(context)
        except ReplayError as reason:
            every = 0
            context.say(f"note: no micro-batch is replayed (--replay-every): {reason}")
    replays = Replays(context, task.model, lambda batch: compute_alone(task, precision, scaler, batch), every, kinds)
    replays.agreed = replays.active and was_found(context)
    return replays


def allow_left_out_steps(optimizer: torch.optim.Optimizer) -> None:
    """Make sure that the optimizer can leave out a step as the device decides. Raises TypeError where it cannot."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        raise TypeError(f"{type(optimizer).__name__} needs fused=True, so that it can skip a step.")
    if isinstance(optimizer, torch.optim.SGD):
        # torch 2.10 leaves the momentum of a first step that is left out uninitialised; zeros mean the same as none.
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


# Options that say where something is, which may be another place on each node; what is there is compared.
PLACES = ("config", "dataset", "export", "model", "tokenizer")


def agree_on_task(task: Task, options: Common, precision: Precision, context: Context) -> None:
    """Raise ConfigurationError, on all ranks, where they would not train the same model on the same data in the same way."""
    asked = {f"--{name.replace('_', '-')}": value for name, value in options.values().items() if name not in PLACES}
    model = {f"its model's {name}": value for name, value in task.description.items()}
    context.require_same(
        {"its data": task.data} | model | asked | {"its precision": precision.name},
        "Give all nodes the same files, the same image and the same kind of processor.",
    )


def divide_batch(options: Common, context: Context, readers: int | None = None) -> int:
    """The global batch size that `readers` share, all processes or all pipelines of them; the launcher has asked the same
    where it knew how many there would be. Raises ConfigurationError.
    """
    world = context.place.world_size
    readers = readers or world
    size = options.divide_batch(readers, "processes" if readers == world else "pipelines")
    if not options.batch_size_per_process and size != options.batch_size:
        parts = readers * options.accumulate
        context.say(f"batch size {size} instead of {options.batch_size}, so that {parts} micro-batches divide it")
    return size
