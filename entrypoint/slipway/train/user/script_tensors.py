"""Tensors and arrays that a script keeps in its own variables, containers and objects and changes where they are: centers, a
queue, prototypes. A snapshot has them by the script's names for them.

Those count that are there where the loop begins. A variable that gets another tensor in each step may be a result.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from slipway.train.snapshots.tensors import DTYPES
from slipway.train.user.data_attributes import LARGEST
from slipway.train.user.found import Variable, own_attributes, parts_of, roots_of_script, tensors_of, walk
from slipway.train.user.module_attributes import is_short, version_of
from slipway.train.user.objects import Objects

MOST = 2**26  # bytes of one that is saved
LOOKED_AT = 2**13  # values of an array, which has no count of its changes
CONTAINERS = (dict, list, tuple, deque, FunctionType)
Values = torch.Tensor | np.ndarray


class ScriptTensors:
    """Those of a script, as an object with a state, which consists of those that were changed."""

    def __init__(self, objects: Objects, ignored: Collection[object]) -> None:
        """Pass it with the `objects`, of which it saves nothing."""
        self._objects, self._ignored = objects, ignored
        self._noted: dict[str, tuple[Variable, Any, Hashable]] | None = (
            None  # with a weak reference in place of the value
        )
        self._stored: Mapping[str, Any] = {}  # until the loop begins

    def begin(self) -> None:
        """Note what there is where the loop begins, and have it as it was in the snapshot."""
        self._noted = {}
        for place in self._find():
            key = place.name
            while key in self._noted:
                key += "'"
            self._noted[key] = place._replace(value=None), weakref.ref(place.value), mark_of(place.value)
        self.load_state_dict({"values": self._stored})
        self._stored = {}

    def state_dict(self) -> dict[str, Any]:
        """Return those that were changed."""
        if self._noted is None:
            return {"values": dict(self._stored)}
        return {"values": {key: each for key, _, each in self._changed() if each.nbytes <= MOST}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have these be so, at once or where the loop begins."""
        if self._noted is None:
            self._stored = state["values"]
            return
        for key, value in state["values"].items():
            now = self._noted[key][1]() if key in self._noted else None
            if now is not None and (now.shape, now.dtype) == (value.shape, value.dtype):
                with torch.no_grad():
                    now[...] = value

    def outgrown(self) -> Iterator[Variable]:
        """Yield once those that were changed and are too large to be saved."""
        for key, place, each in [*self._changed()]:
            if each.nbytes > MOST and self._noted:
                del self._noted[key]
                yield place

    def _changed(self) -> Iterator[tuple[str, Variable, Any]]:
        for key, (place, ref, mark) in (self._noted or {}).items():
            if (value := ref()) is not None and mark_of(value) != mark:
                yield key, place, value.detach() if isinstance(value, torch.Tensor) else value

    def _find(self) -> Iterator[Variable]:
        roots = [each for each in roots_of_script() if not each.name.rpartition(".")[2].startswith("__")]
        places = walk(roots)
        modules = [each.value for each in places.values() if issubclass(type(each.value), nn.Module)]
        models = [each for each in self._objects.all if isinstance(each, nn.Module)]
        others = [each for each in (*self._objects.all, *self._ignored) if not isinstance(each, nn.Module)]
        others += [
            each.value for each in places.values() if issubclass(type(each.value), DataLoader | Dataset | Sampler)
        ]
        beside = walk(Variable(each, "", str) for each in others)
        known = {id(each) for each in self._ignored} | tensors_of([*models, *modules])
        known |= {id(each.value) for place in beside.values() for each in leaves_of(place)}
        parts = {id(part) for model in models for part in model.modules()}
        for place in (*roots, *places.values()):
            for each in () if id(place.value) in beside else leaves_of(place):
                kept = id(place.value) in parts and isinstance(each.value, torch.Tensor) and is_short(each.value)
                if id(each.value) not in known and not kept:  # see ModuleAttributes
                    known.add(id(each.value))
                    yield each


def leaves_of(place: Variable) -> Iterator[Variable]:
    """Yield the tensors and arrays that a value is, has in it or has as attributes, and that can be changed where they are."""
    value, name, where = place
    inside = [place]
    if issubclass(type(value), CONTAINERS):
        inside = [*parts_of(place)]
    elif not isinstance(value, Values):
        inside = [Variable(each, f"{name}.{key}", where) for key, each in own_attributes(value).items()]
    yield from (each for each in inside if is_own(each.value))


def is_own(value: object) -> bool:
    """Whether it is a plain tensor that no graph leads to, or a plain array."""
    if type(value) in (torch.Tensor, nn.Parameter):
        assert isinstance(value, torch.Tensor)
        known = str(value.dtype).removeprefix("torch.") in DTYPES and version_of(value) is not None
        return known and value.is_leaf and value.layout is torch.strided and not value.is_meta
    return (
        type(value) is np.ndarray and value.dtype.kind in "biuf" and value.flags.writeable and value.flags.c_contiguous
    )


def mark_of(value: Any) -> Hashable:
    """Return what differs once a tensor or array was changed; of a long array only some values are looked at."""
    if isinstance(value, torch.Tensor):
        return version_of(value)
    every = 1 + value.size // LOOKED_AT if value.nbytes > LARGEST else 1
    return bytes(value.reshape(-1)[::every].tobytes())
