"""What trains along with the objects that were passed to `slipway.resume`, and would start from nothing in the next attempt."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from slipway.protocol.mistake import ConfigurationError
from slipway.train.own.objects import Objects
from slipway.train.worker.context import Context


class Unsaved:
    """Warns once of each optimizer and scheduler that is in no snapshot."""

    def __init__(self, objects: Objects, context: Context) -> None:
        """Look at each optimizer of this process after its first step, until `close`."""
        self._objects, self._context = objects, context
        self._seen: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._handle = register_optimizer_step_post_hook(self._note_step)

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, more: object) -> None:
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        own = parameters_of(optimizer)
        passed = set().union(*map(parameters_of, self._objects.of_kind(torch.optim.Optimizer)))
        trained = {id(parameter) for model in self._objects.of_kind(nn.Module) for parameter in model.parameters()}
        if own & trained - passed:  # an optimizer within another one has the same parameters
            self._warn(
                f"warning: {type(optimizer).__name__} trains a model that is saved, and was not passed to slipway.resume: "
                "after a failure it starts from nothing. Make it before slipway.resume, and pass it: optimizer=optimizer."
            )
        scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        if own & passed and scheduled and not self._objects.having("get_last_lr"):
            self._warn(
                f"warning: a scheduler sets the learning rate of {type(optimizer).__name__}, and none was passed to "
                "slipway.resume: after a failure it starts from its beginning. Pass it: scheduler=scheduler."
            )

    def _warn(self, text: str) -> None:
        if self._context.place.rank == 0:
            self._context.warn(text)

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()


def parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the identities of the parameters that an optimizer trains."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def require_in_place(objects: Objects, device: torch.device) -> None:
    """Raise ConfigurationError where the models are on another device than when the run began."""
    if (found := device_of(objects)).type != device.type:
        raise ConfigurationError(
            f"The model was on {device} in slipway.resume, and is on {found} now. Move it first: model.to({found.type!r}), then "
            "make the optimizer, then call slipway.resume."
        )


def device_of(objects: Objects) -> torch.device:
    """Return the device that the models are on."""
    for model in objects.of_kind(nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return torch.device(tensor.device)
    return torch.device("cpu")
