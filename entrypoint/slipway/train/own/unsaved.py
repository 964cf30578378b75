"""What trains along with the objects that were passed to `slipway.resume`, and would start from nothing in the next attempt."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from slipway.protocol.mistake import ConfigurationError
from slipway.train.own.objects import Objects
from slipway.train.worker.context import Context

ALONE = 10  # boundaries with steps of other optimizers alone; a gradient scaler may leave out a few steps


class Unsaved:
    """Warns once of each optimizer, scheduler and parameter that is in no snapshot; refuses what makes snapshots useless."""

    def __init__(self, objects: Objects, context: Context) -> None:
        """Look at each optimizer of this process after its first step, until `close`."""
        self._objects, self._context = objects, context
        self._seen: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._alone, self._dtype = 0, dtype_of(objects)
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
        if (lost := own - trained) and (own & passed or not trained):
            self._warn(
                f"warning: {type(optimizer).__name__} trains {len(lost)} parameters of no model that was passed to "
                "slipway.resume: after a failure they start from nothing. Pass what they belong to: model=model."
            )
        scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        if own & passed and scheduled and not self._objects.having("get_last_lr"):
            self._warn(
                f"warning: a scheduler sets the learning rate of {type(optimizer).__name__}, and none was passed to "
                "slipway.resume: after a failure it starts from its beginning. Pass it: scheduler=scheduler."
            )

    def require_own_steps(self) -> None:
        """At a boundary where no optimizer had stepped that was passed. Raises ConfigurationError where only others ever do."""
        passed = self._objects.of_kind(torch.optim.Optimizer)
        others = [each for each in self._seen if each not in passed]
        self._alone += bool(others)
        if others and len(others) == len(self._seen) and self._alone >= ALONE:
            if within := attribute_of(passed[0], others[0]):
                raise ConfigurationError(
                    f"{type(passed[0]).__name__} was passed to slipway.resume, and only the {type(others[0]).__name__} in it "
                    f"steps, so no step was counted, and nothing can be saved. Pass that one: optimizer=….{within}."
                )
            raise ConfigurationError(
                f"{type(others[0]).__name__} trains, not the {type(passed[0]).__name__} that was passed to slipway.resume, so "
                "no step was counted, and nothing can be saved. Create the model and the optimizer once, before slipway.resume."
            )

    def require_in_place(self) -> None:
        """Raise ConfigurationError where the models are on another device, or of another type, than when the run began."""
        device, found, dtype = self._context.device, device_of(self._objects), dtype_of(self._objects)
        if found.type != device.type:
            was, now, move = f"on {device}", f"on {found}", f"model.to({found.type!r})"
        elif dtype != self._dtype:
            was, now, move = str(self._dtype), str(dtype), f"model.to({dtype})"
        else:
            return
        raise ConfigurationError(
            f"The model was {was} in slipway.resume, and is {now} now. Move it first: {move}, then make the optimizer, then call "
            "slipway.resume."
        )

    def _warn(self, text: str) -> None:
        if self._context.place.rank == 0:
            self._context.warn(text)

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()


def attribute_of(outer: object, inner: object) -> str:
    """Return the name under which one object has another, empty where it does not."""
    return next((name for name, value in vars(outer).items() if value is inner), "")


def parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the identities of the parameters that an optimizer trains."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def device_of(objects: Objects) -> torch.device:
    """Return the device that the models are on."""
    for model in objects.of_kind(nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return torch.device(tensor.device)
    return torch.device("cpu")


def dtype_of(objects: Objects) -> torch.dtype | None:
    """Return the type of the models' first parameter, None where there is none."""
    parameters = (parameter for model in objects.of_kind(nn.Module) for parameter in model.parameters())
    return next((parameter.dtype for parameter in parameters), None)
