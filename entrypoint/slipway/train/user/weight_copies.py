"""Copies of a model's weights that a script keeps in dictionaries and lists of its own: a moving average, slow weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from slipway.train.user.found import Variable, places_of_variables, tensors_of, walk
from slipway.train.user.objects import Objects
from slipway.train.user.saved_states import SavedStates, bits_of


class WeightCopies:
    """Notices that such copies change although no snapshot has them. Those count that are there when `slipway.resume` returns:
    a loop makes others in each step, from what it has then.
    """

    def __init__(self, objects: Objects, ignored: Sequence[object]) -> None:
        """None is known yet; nor is any kept alive."""
        self._objects, self._ignored = objects, ignored
        self._noted: dict[int, tuple[str, Hashable]] = {}

    def note(self) -> None:
        """Note those that there are."""
        self._noted = {id(place.value): (last_name(place), mark) for place, _, mark in self._find()}

    def lost(self, saved: SavedStates) -> Iterator[Variable]:
        """Yield those that have changed and are not saved, each once."""
        for place, tensors, mark in self._find() if self._noted else ():
            name, before = self._noted.get(id(place.value), ("", mark))
            if name == last_name(place) and mark != before:
                del self._noted[id(place.value)]
                if not all(map(saved.has_tensor, tensors)):
                    yield place

    def _find(self) -> Iterator[tuple[Variable, list[torch.Tensor], Hashable]]:
        """Yield what has tensors of the shapes of passed models, at least half as many as these train; what they contain."""
        models = self._objects.of_kind(nn.Module)
        shapes = {tensor.shape for model in models for tensor in (*model.parameters(), *model.buffers())}
        least = sum(parameter.requires_grad for model in models for parameter in model.parameters()) / 2
        places = places_of_variables()
        modules = [place.value for place in places.values() if issubclass(type(place.value), nn.Module)]
        known = tensors_of([*self._objects.all, *self._ignored, *modules])
        beside = {*walk(Variable(each, "", str) for each in self._ignored)}
        for number, place in places.items():
            if issubclass(type(place.value), dict | list) and number not in beside:
                tensors = [each for each in tensors_within(place.value) if id(each) not in known]
                if models and len(tensors) >= max(least, 1) and shapes.issuperset(each.shape for each in tensors):
                    known |= {*map(id, tensors)}  # a list within this one is no other
                    yield place, tensors, tuple(map(bits_of, tensors))


def tensors_within(value: Any, depth: int = 1) -> Iterator[torch.Tensor]:
    """Yield the tensors with fractions in a dictionary or list, and in those that are in it."""
    for each in [*value.values()] if issubclass(type(value), dict) else [*value]:
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            yield each
        elif depth and issubclass(type(each), dict | list):
            yield from tensors_within(each, depth - 1)


def last_name(place: Variable) -> str:
    """Return the last part of a name: the object before it has other names in other functions."""
    return place.name.rpartition(".")[2]
