"""How a model is judged: on every validation sample once, whatever the number of processes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from slipway.train.loop.precision import Precision
from slipway.train.loop.task import Validation


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
    """The named results of `model` on the validation samples. Returns None where `turn` said that it must end.

    `share` is (number, shares): this process judges sample `number` and every one that is a multiple of `shares` behind
    it. `add` returns the sums over all processes, a float64 tensor of shape (k,) on `device`. `turn` is called before
    each batch, as often on all processes.
    """
    number, shares = share
    mine = torch.arange(min(number, validation.samples), validation.samples, shares, device=device)
    was_training = model.training
    model.eval()
    try:
        parts = []
        # As many turns on all processes, so that they agree on leaving; the last may be empty.
        for start in range(0, math.ceil(validation.samples / shares), validation.batch_size):
            if not turn():
                return None
            indices = mine[start : start + validation.batch_size]
            with precision.autocast():
                parts.append(validation.sums(model, validation.batch(indices)))
    finally:
        model.train(was_training)
    *totals, count = add(torch.stack(parts).sum(0)).tolist()
    return validation.results([total / count for total in totals])
