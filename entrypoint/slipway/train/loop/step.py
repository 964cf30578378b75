"""One optimizer step over a global batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from slipway.options import Common
from slipway.protocol.phases import Phase
from slipway.train.loop.arithmetic import Buffers, poison
from slipway.train.loop.training import Training
from slipway.train.task import Batch


def take_step(training: Training, phase: Phase) -> float:
    """Take a step, or leave it out where loss or gradient are not finite. Returns its learning rate.

    Never waits for a GPU. Before the last part it begins to exchange the stop flag, so that this costs no time either.
    """
    options, optimizer, context = training.options, training.task.optimizer, training.context
    own_time = training.stragglers.own_time
    own_time.begin()
    rate = learning_rate(options, training.step, training.total)
    for group in optimizer.param_groups:
        group["lr"] = rate
    buffers = Buffers(training.buffers)
    loss = training.parallel.backward(batch_parts(training, phase), lambda part: poison(part) / options.accumulate)
    own_time.go_on()
    buffers.restore(update_weights(training, loss))
    own_time.end()
    training.step += 1
    training.position += training.batch_size
    context.progress(training.step)
    return rate


def batch_parts(training: Training, phase: Phase) -> Iterator[Batch]:
    """The parts of the next step, with what happens before each."""
    for number, batch in enumerate(training.loader.step(), start=1):
        training.context.beat(phase)
        if number == 1:
            training.replays.keep(training.step + 1, batch)
        if number == training.options.accumulate:
            training.stragglers.own_time.begin_last_part()
            training.context.begin_stop_exchange(late=not training.loader.ready())
        yield batch


def update_weights(training: Training, loss: torch.Tensor) -> torch.Tensor:
    """Change the weights by the gradients, unless those are not finite. Returns 1.0 where they are not, else 0.0."""
    optimizer, scaler = training.task.optimizer, training.scaler
    gradients = {name: part.grad for name, part in training.parameters.items() if part.grad is not None}
    scale = scaler.scale(torch.ones_like(loss)) if scaler.is_enabled() else None
    scaler.unscale_(optimizer)
    loss, norm = training.parallel.agree(loss, gradients)
    training.gradient = norm
    if training.options.clip:
        nn.utils.clip_grads_with_norm_(training.parameters.values(), training.options.clip, norm)
    # As the gradient scaler tells fused optimizers, which then leave everything as it is, on the device.
    left_out = training.numbers.judge(loss, norm, scale)
    optimizer.found_inf = left_out  # type: ignore[attr-defined]
    optimizer.step()
    if scaler.is_enabled():
        for found in scaler._found_inf_per_device(optimizer).values():  # the stages of a pipeline may have found others
            found.copy_(left_out)
    scaler.update()
    optimizer.zero_grad()
    return left_out


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
