"""Steps whose loss or gradient is not a finite number: left out on the device, and known to the host one step later.

On a GPU every operation on a number costs as much as one on a thousand, a few microseconds of both GPU and host, at
every step. So there are as few of them as will do; `torch.isfinite` alone would be four.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from slipway.train.snapshots.bits import plain
from slipway.train.worker.outcome import NoProgressError


class NonFiniteError(NoProgressError):
    """There were too many such steps in a row, or weights are not finite."""

    advice = "type a smaller --lr, or a positive --clip"


class Numbers:
    """What is counted on the device while training goes on, so that no step waits for the host."""

    def __init__(self, device: torch.device) -> None:
        """Begin with nothing counted."""
        self.losses = torch.zeros((), device=device)  # sum over the steps since the last report that were not left out
        self.skipped = torch.zeros((), device=device)  # steps left out since the last report
        self.in_row = torch.zeros((), device=device)  # such steps in a row, up to now
        self._none = torch.zeros((), device=device)
        self._seen = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def judge(self, loss: torch.Tensor, norm: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """Count a step by its loss and the norm of its gradient. Returns 1.0 where it must be left out, else 0.0.

        `scale` is the gradient scaler's, None without one. While it is above 1 an overflow is the scaler's way of
        finding it, and no sign of trouble. With an averaged gradient the answer is the same on all ranks.
        """
        odd = norm * 0 != 0  # infinity times 0 is no number either
        bad = odd.float()
        self.losses += torch.where(odd, self._none, loss.detach())
        self.skipped += bad
        self.in_row = (self.in_row + (1 if scale is None else scale <= 1)) * bad
        return bad

    def late(self) -> int:
        """How many steps in a row were left out, as of the call before this one."""
        if self._copied is not None:
            self._copied.synchronize()
        seen = int(self._seen)
        self._seen.copy_(self.in_row, non_blocking=True)
        if self._copied is not None:
            self._copied.record()  # type: ignore[no-untyped-call]
        return seen

    def restart(self) -> None:
        """Begin a new report."""
        self.losses.zero_()
        self.skipped.zero_()

    def state(self) -> torch.Tensor:
        """All of it, float32, shape (3,), on the device."""
        return torch.stack([self.losses, self.skipped, self.in_row])

    def load(self, states: list[torch.Tensor], own: torch.Tensor | None) -> None:
        """Undo `state`: take this rank's `own`, or without it (another world size) the mean over the `states` of all."""
        values = torch.stack(states).mean(0) if own is None else own
        for number, value in zip((self.losses, self.skipped, self.in_row), values, strict=True):
            number.copy_(value)
        self._seen.copy_(values[2])


def poison(loss: torch.Tensor) -> torch.Tensor:
    """The same loss; where it is not finite its gradient becomes NaN, and with it every rank's once it is averaged."""
    return loss * (loss.detach() * 0 + 1)  # infinity times 0 is NaN


class Buffers:
    """Buffers of a model, such as running statistics, as they are before a step that may have to be left out.

    A handful of operations on all of them at once, where a ResNet-50 would need six hundred on one each.
    """

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        """Remember what they hold."""
        self._alike = [(kind, strung(kind)) for kind in alike(map(plain, buffers))]

    def restore(self, left_out: torch.Tensor) -> None:
        """Give them back what they held where the step was left out: they saw what was not finite."""
        for buffers, before in self._alike:
            kept = torch.where(left_out > 0, before, strung(buffers))
            values = torch.split(kept, [buffer.numel() for buffer in buffers])
            shaped = [value.view(buffer.shape) for value, buffer in zip(values, buffers, strict=True)]
            torch._foreach_copy_(buffers, shaped)


def strung(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copies of tensors that are alike, one behind the other."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def alike(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors by type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


def are_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether every number in the tensors is finite; one pass at the speed of memory, and a wait for the device."""
    kinds = alike(tensor.float() if tensor.itemsize == 1 else tensor for tensor in tensors if tensor.numel())
    return all(bool(torch.stack(summaries(kind)).isfinite().all()) for kind in kinds)


def summaries(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """A number of each tensor (all are alike) that is finite only where the tensor is."""
    if tensors[0].is_cuda:  # all at once; on a CPU the largest takes ten times as long as the sum
        return list(torch._foreach_norm(tensors, math.inf))
    return [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
