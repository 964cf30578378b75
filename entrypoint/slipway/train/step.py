"""One optimizer step over a global batch."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway.train.nonfinite import poison
from slipway.train.options import Common
from slipway.train.state import random_states, set_random_states
from slipway.train.training import Training


def take_step(training: Training, phase: str) -> float:
    """Take a step, or leave it out where loss or gradient are not finite. Returns its learning rate.

    Never waits for a GPU. Before the last part it begins to exchange the stop flag, so that this costs no time either.
    """
    options, optimizer, context = training.options, training.task.optimizer, training.context
    rate = learning_rate(options, training.step, training.total)
    for group in optimizer.param_groups:
        group["lr"] = rate
    mean = torch.zeros((), device=context.device)
    buffers = list(training.task.model.buffers())
    before = [buffer.clone() for buffer in buffers]
    for number, batch in enumerate(training.loader.step(), start=1):
        last = number == options.accumulate
        context.beat(phase)
        if last:
            context.look(late=not training.loader.ready())
        with nullcontext() if last else no_sync(training.parallel):
            with training.precision.autocast():
                loss = poison(training.task.loss(training.parallel, batch)) / options.accumulate
            training.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        mean += loss.detach()
    left_out = update(training, mean)
    for buffer, value in zip(buffers, before, strict=True):  # running statistics saw what was not finite
        buffer.copy_(torch.where(left_out > 0, value, buffer))
    training.step += 1
    training.position += training.batch_size
    context.progress(training.step)
    return rate


def update(training: Training, loss: torch.Tensor) -> torch.Tensor:
    """Change the weights by the gradients, unless those are not finite. Returns 1.0 where they are not, else 0.0."""
    optimizer, scaler = training.task.optimizer, training.scaler
    parameters = [parameter for parameter in training.task.model.parameters() if parameter.grad is not None]
    scale = scaler.scale(torch.ones_like(loss))
    scaler.unscale_(optimizer)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    training.gradient = norm
    if training.options.clip:
        nn.utils.clip_grads_with_norm_(parameters, training.options.clip, norm)
    # As the gradient scaler tells fused optimizers, which then leave everything as it is, on the device.
    left_out = training.numbers.judge(loss, norm, scale)
    optimizer.found_inf = left_out  # type: ignore[attr-defined]
    optimizer.step()
    scaler.update()
    optimizer.zero_grad()
    return left_out


def settle(training: Training) -> None:
    """Let DistributedDataParallel find its order of gradients, by a forward and backward that change nothing else.

    It sorts them into buckets anew after the first backward, and sums in another order from then on. A run that
    goes on from a snapshot would do so one step later than one that was never interrupted.
    """
    if not isinstance(training.parallel, DistributedDataParallel):
        return
    device, buffers = training.context.device, list(training.task.model.buffers())
    random, kept = random_states(device), [buffer.clone() for buffer in buffers]
    with training.precision.autocast():
        loss = training.task.loss(training.parallel, training.loader.example())
    loss.backward()  # type: ignore[no-untyped-call]
    training.task.optimizer.zero_grad()
    set_random_states(device, random)
    for buffer, before in zip(buffers, kept, strict=True):
        buffer.copy_(before)


def no_sync(parallel: nn.Module) -> Any:
    """A context in which gradients stay on this process, to be averaged with the last part."""
    return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()


def learning_rate(options: Common, step: int, total: int) -> float:
    """The rate of step `step` (from 0): a linear rise over the warm-up, then constant, a line to 0 or a cosine to a tenth."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    if options.schedule == "constant":
        return options.lr
    share = min(1.0, (step - options.warmup) / max(1, total - options.warmup))
    if options.schedule == "linear":
        return options.lr * (1 - share)
    return options.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
