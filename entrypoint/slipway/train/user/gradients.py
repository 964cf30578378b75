"""When optimizers step, and whether gradients are pending that a snapshot would lose."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from slipway.train.user.sharding import local

FEW = 9  # optimizers; with one for each parameter, the time would grow with the square of their number
# The gradient of each parameter that has one, by the parameter's id, and its version. Weak references, since a new gradient may
# get the address of one that is gone.
Fingerprint = dict[int, tuple["weakref.ref[torch.Tensor]", int]]


class Gradients:
    """Counts the steps of the first of some optimizers, and knows what the gradients were at the last step of any of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], wanted: Callable[[], bool]) -> None:
        """`wanted` is asked at each step of one of FEW or more optimizers whether `pending` will be asked for: remembering takes
        time, and each of them remembers the gradients of all.
        """
        self.steps = 0
        self.stepped = False  # since somebody last reset this
        self._optimizers, self._wanted = optimizers, wanted
        self._at_step: Fingerprint | None = self._fingerprint()
        self.leftover = Leftover()
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_step)

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, more: object) -> None:
        self.steps += optimizer is self._optimizers[0]
        self.stepped = True
        self.leftover.note_step(optimizer)
        self._at_step = self._fingerprint() if len(self._optimizers) < FEW or self._wanted() else None

    @property
    def pending(self) -> bool:
        """Whether gradients were added to after the last step of an optimizer, or whether that is not known."""
        if not self._optimizers:
            return False
        if self._at_step is None:
            return True
        changed = (each for number, each in self._gradients() if not is_same(each, self._at_step.get(number)))
        # zero_grad(set_to_none=False) changes them as well.
        return any(values_of(each).count_nonzero() for each in changed)

    def _gradients(self) -> Iterator[tuple[int, torch.Tensor]]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if (gradient := parameter.grad) is not None:
                        yield id(parameter), gradient if type(gradient) is torch.Tensor else local(gradient)

    def _fingerprint(self) -> Fingerprint:
        return {number: (weakref.ref(each), each._version) for number, each in self._gradients()}


class Leftover:
    """Notices that steps use gradients with which a step was done before, since nobody has zeroed them."""

    def __init__(self) -> None:
        """Of one parameter of each optimizer, and only if its gradient stays the same tensor: most loops make another one."""
        self._gradients: dict[int, Callable[[], Any]] = {}  # by optimizer
        self._parameters: dict[int, Callable[[], Any]] = {}
        # How often the gradient was changed when the step was done, until a backward adds to it; whether numbers were in it then.
        self._used: dict[int, int | None] = {}
        self._left: dict[int, bool] = {}
        self._found = ""

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step."""
        key = id(optimizer)
        if key in self._parameters:
            if self._left[key] and self._used[key] is None:
                self._found = self._found or type(optimizer).__name__
            gradient = getattr(self._parameters[key](), "grad", None)
            self._used[key], self._left[key] = None if gradient is None else local(gradient)._version, False
            return
        parameters = (each for group in optimizer.param_groups for each in group["params"] if each.grad is not None)
        if (parameter := next(parameters, None)) is not None:
            before = self._gradients.get(key, lambda: None)
            self._gradients[key] = weakref.ref(parameter.grad)
            if before() is parameter.grad:
                self._parameters[key] = weakref.ref(parameter)
                self._used[key], self._left[key] = local(parameter.grad)._version, False
                parameter.register_hook(partial(self._note_backward, key))
                parameter.register_post_accumulate_grad_hook(partial(self._note_added, key))

    def _note_backward(self, key: int, _: torch.Tensor) -> None:
        """Before a gradient is added, or torch.autograd.grad returns it. What zeroes through `.data` counts as no change."""
        used = self._used[key]
        if not self._found and (used is not None or self._left[key]):
            gradient = getattr(self._parameters[key](), "grad", None)
            numbers = torch.empty(0) if gradient is None else local(gradient)
            self._left[key] = used in (None, numbers._version) and bool(values_of(numbers).count_nonzero())

    def _note_added(self, key: int, _: torch.Tensor) -> None:
        self._used[key] = None

    def explain(self) -> str:
        """Return a line, once, if that was found."""
        if self._found in ("", "told"):
            return ""
        kind, self._found = self._found, "told"
        return (
            f"warning: {kind} steps with gradients that the step before has used, and to which the next backward was added: no "
            "snapshot has gradients, so after a resume they begin at zero. Call zero_grad() after each step."
        )


def is_same(gradient: torch.Tensor, before: tuple[weakref.ref[torch.Tensor], int] | None) -> bool:
    """Whether nothing was added to a gradient since `before`."""
    return before is not None and before[0]() is gradient and before[1] == gradient._version


def values_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the numbers in a gradient that may be sparse."""
    if gradient.layout == torch.sparse_coo:
        return gradient._values()
    return gradient if gradient.layout == torch.strided else gradient.values()
