"""A task under way: what it consists of, and how it is made, brought to a snapshot's step, and saved."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from slipway.train.compiler import decide_compile
from slipway.train.context import Context
from slipway.train.data import Sampler
from slipway.train.loader import Loader
from slipway.train.nonfinite import Numbers
from slipway.train.options import Common, ConfigurationError
from slipway.train.precision import Precision, read_precision
from slipway.train.resume import SNAPSHOTS
from slipway.train.task import Task
from slipway.train.writer import Writer


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
    loader: Loader
    writer: Writer
    numbers: Numbers
    gradient: torch.Tensor  # norm at the last step, before it was clipped, on the device
    step: int = 0
    position: int = 0  # in the sampler's stream, in samples
    reported: int = 0  # the step of the last report
    saved: int = -1  # the step of the last snapshot, the same on all ranks
    held: int = -1  # the step of a valid snapshot that this rank's run directory held already
    evaluation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sample: str = ""


def prepare(task: Task, options: Common, context: Context) -> Training:
    """Everything that training needs, at step 0. Raises ConfigurationError for a batch that cannot be divided."""
    agree_on_data(task, context)
    batch_size = divide_batch(options, context)
    precision = read_precision(options.precision, context.device)
    compiled = decide_compile(options.compile, context.device.type, os.environ)
    model: nn.Module = torch.compile(task.model) if compiled else task.model  # type: ignore[assignment]
    parallel = model
    if context.place.world_size > 1:
        parallel = average_gradients(model, options, context)
    allow_left_out_steps(task.optimizer)
    total = options.steps or math.ceil((options.epochs or 1) * task.samples / batch_size)
    context.steps = total
    context.say(
        f"{task.name}: {sum(parameter.numel() for parameter in task.model.parameters()):,} parameters, "
        f"{task.samples:,} samples, {total:,} steps of {batch_size} samples "
        f"({batch_size // context.place.world_size} per process), {precision.name} on {context.device.type}"
    )
    # Weights are made from the seed itself, on all ranks alike; dropout differs from rank to rank.
    torch.manual_seed(options.seed + 1 + context.place.rank)
    loader = Loader(
        task.batch, Sampler(task.samples, options.seed), batch_size, options.accumulate,
        (context.place.rank, context.place.world_size), context.device, options.workers,
    )  # fmt: skip
    return Training(
        task, options, context, precision, batch_size, total, model, parallel, precision.scaler(), loader,
        Writer(context.place.run_dir / SNAPSHOTS, options.keep), Numbers(context.device),
        torch.zeros((), device=context.device),
    )  # fmt: skip


def allow_left_out_steps(optimizer: torch.optim.Optimizer) -> None:
    """Make sure that the optimizer can leave out a step as the device decides. Raises TypeError where it cannot."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        raise TypeError(f"{type(optimizer).__name__} needs fused=True, so that it can leave out a step.")
    if isinstance(optimizer, torch.optim.SGD):
        # torch 2.10 leaves the momentum of a first step that is left out uninitialised; zeros mean the same as none.
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def average_gradients(model: nn.Module, options: Common, context: Context) -> DistributedDataParallel:
    """The model with its gradients averaged over all processes, in buckets and in the form that `options` ask for."""
    parallel = DistributedDataParallel(
        model,
        device_ids=[context.device.index] if context.device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_mb,
        gradient_as_bucket_view=True,
        find_unused_parameters=options.find_unused_parameters,
        static_graph=options.static_graph,
    )
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    if options.comm in hooks:
        parallel.register_comm_hook(None, hooks[options.comm])
    return parallel


def agree_on_data(task: Task, context: Context) -> None:
    """Raise ConfigurationError, on all ranks, where they do not train on the same data."""
    first = context.share_text(task.data)
    different = [rank for rank, [odd] in enumerate(context.gather(torch.tensor([task.data != first]))) if odd]
    if different:
        raise ConfigurationError(
            f"Rank {different[0]} has other data than rank 0, which has: {first}. Give all nodes the same files and the "
            "same image."
        )


def divide_batch(options: Common, context: Context) -> int:
    """The global batch size: the user's own, or the default made divisible. Raises ConfigurationError."""
    if options.batch_size_per_process:
        return options.batch_size_per_process * context.place.world_size
    parts = context.place.world_size * options.accumulate
    if not options.batch_size:
        raise ConfigurationError("Type --batch-size or --batch-size-per-process.")
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
