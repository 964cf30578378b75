"""Steps whose loss or gradient is not a finite number: left out on the device, and known to the host one step later."""

from __future__ import annotations

import math

import torch

from slipway.train.outcome import NoProgressError


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
        self._seen = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def judge(self, loss: torch.Tensor, norm: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Count a step by its loss and the norm of its gradient. Returns 1.0 where it must be left out, else 0.0.

        `scale` is the gradient scaler's. While it is above 1 an overflow is the scaler's way of finding it, and no
        sign of trouble. With an averaged gradient the answer is the same on all ranks.
        """
        bad = (~torch.isfinite(norm)).float()
        self.losses += torch.where(bad > 0, 0.0, loss.detach())
        self.skipped += bad
        self.in_row = (self.in_row + (scale <= 1)) * bad
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
        """All of it, float32, shape (3,), on the CPU."""
        return torch.stack([self.losses, self.skipped, self.in_row]).cpu()

    def load(self, states: list[torch.Tensor], own: torch.Tensor | None) -> None:
        """Undo `state`: take this rank's `own`, or without it (another world size) the mean over the `states` of all."""
        values = torch.stack(states).mean(0) if own is None else own
        for number, value in zip((self.losses, self.skipped, self.in_row), values, strict=True):
            number.copy_(value)
        self._seen.copy_(values[2])


def poison(loss: torch.Tensor) -> torch.Tensor:
    """The same loss; where it is not finite its gradient becomes NaN, and with it every rank's once it is averaged."""
    return loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan)


def are_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether every number in the tensors is finite; one pass at the speed of memory, and one wait for the device."""
    sums = [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
    return not sums or bool(torch.stack([total.double() for total in sums]).isfinite().all())
