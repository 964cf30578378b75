"""Numbers that decide about steps, and that no snapshot has: those of a schedule of the script's own, without `state_dict`, of a
loss module, and of a hook that compresses what DistributedDataParallel exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader

from slipway.train.user.found import FoundObject, found_at, has_state, own_attributes, places_of_variables
from slipway.train.user.live_models import live_models
from slipway.train.user.objects import Objects
from slipway.train.user.script_values import belongs_to_users

Numbers = dict[str, int | float]  # by attribute


class StepNumbers:
    """Notices that they change. Those count that are there when `slipway.resume` returns."""

    def __init__(self, objects: Objects, ignored: Collection[object]) -> None:
        """None is known yet."""
        self._objects, self._ignored = objects, ignored
        self._noted: list[tuple[FoundObject, Numbers]] = []

    def note(self) -> None:
        """Note those that there are."""
        places = places_of_variables()
        optimizers = {id(each) for each in self._objects.of_kind(torch.optim.Optimizer)}
        schedules = [place.value for place in places.values() if is_schedule(place.value, optimizers)]
        losses = [place.value for place in places.values() if is_loss(place.value)]
        models = [each for each in (*self._objects.all, *self._ignored) if isinstance(each, nn.Module)]
        known = {
            id(each)
            for each in (*self._objects.all, *self._ignored, *(part for each in models for part in each.modules()))
        }
        self._noted = [
            (found_at(each, places.get(id(each))), numbers_of(each))
            for each in (*schedules, *losses, *states_of_hooks())
            if id(each) not in known
        ]

    def changed(self) -> Iterator[tuple[FoundObject, str]]:
        """Yield the objects of which a number has changed, and its name, each once."""
        noted, self._noted = self._noted, []
        for found, before in noted:
            value = found.ref()
            now = {} if value is None else numbers_of(value)
            name = next((name for name, number in now.items() if before.get(name, number) != number), "")
            if name:
                yield found, name
            elif value is not None:
                self._noted.append((found, before))


def is_schedule(value: object, optimizers: Collection[int]) -> bool:
    """Whether an object steps a passed optimizer or what belongs to it. One that has a model or data is the whole training, whose
    numbers may be there to be shown.
    """
    kind = type(value)
    if has_state(kind) or not belongs_to_users(kind) or not callable(getattr(kind, "step", None)):
        return False
    attributes = own_attributes(value).values()
    return any(id(each) in optimizers for each in attributes) and not any(
        issubclass(type(each), nn.Module | DataLoader) for each in attributes
    )


def is_loss(value: Any) -> bool:
    """Whether it is a module without tensors that is one of torch's losses, or is called by that name."""
    kind = type(value)
    if not issubclass(kind, nn.Module) or not has_state(kind):
        return False
    named = issubclass(kind, _Loss) or re.search(r"(?i)loss|criterion", kind.__name__)
    return bool(named) and not any(True for _ in chain(value.parameters(), value.buffers()))


def states_of_hooks() -> Iterator[Any]:
    """Yield the states of the communication hooks of all models."""
    for model in live_models():
        yield from (state for _, state in getattr(model, "_comm_hooks", ()) if numbers_of(state))


def numbers_of(value: object) -> Numbers:
    """Return the numbers among an object's attributes."""
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)}
    attributes = {**own_attributes(value), **{name: getattr(value, name) for name in slots}}
    return {name: each for name, each in attributes.items() if type(each) in (int, float)}
