"""Containers in a script's variables and objects of its own classes: a queue of keys, a replay buffer, the count of an average.

What the loop changes of them is saved as that of passed objects is (see ModuleAttributes), by the script's names for them. Those
count that are there where the loop begins.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any, Generic

import numpy as np
import torch
from torch import nn

from slipway.train.user.data_attributes import LONGEST, is_of_user, keeps_attributes, room_after
from slipway.train.user.found import (
    Variable,
    has_state,
    line_in_class,
    own_attributes,
    parts_of,
    roots_of_script,
    walk,
)
from slipway.train.user.objects import Objects
from slipway.train.user.step_numbers import is_schedule
from slipway.train.user.values import PLAIN

MARK = ":"  # begins their names
MOST = 1000  # objects and containers, the nearest first
CONTAINERS = (list, dict, deque)
BARE = (object, ABC, Generic)
VALUES = (*PLAIN, *CONTAINERS, tuple, np.ndarray, np.generic, torch.Tensor, nn.Parameter)


class Kept:
    """A container in a variable of the script's."""

    def __init__(self, it: Any) -> None:
        """It is called to return itself, as a weak reference is."""
        self.it = it

    def __call__(self) -> Kept:
        """See `__init__`."""
        return self


class ScriptPlaces:
    """Those of a script, each with a name. Objects are held by weak references, containers as long as they can be saved."""

    def __init__(self, objects: Objects, ignored: Collection[object]) -> None:
        """Note what there is, but for the `objects`, what is `ignored`, and what these lead to."""
        self._found: dict[str, Callable[[], Any]] = {}
        self._variables: dict[str, Variable] = {}  # without their values
        optimizers = {id(each) for each in objects.of_kind(torch.optim.Optimizer)}
        beside = {*walk(Variable(each, "", str) for each in (*objects.all, *ignored))}
        for place in islice(find(beside, optimizers), MOST):
            name = f"{MARK}{place.name}"
            while name in self._found:
                name += "'"
            value = place.value
            self._found[name] = Kept(value) if type(value) in CONTAINERS else weakref.ref(value)
            self._variables[name] = place._replace(value=None)
        self._handles = {name: {*map(id, vars(ref()).values())} for name, ref in self._found.items()}
        self._ends = {path: ends_of(value) for path, _, value in self._containers()}
        self._newest: dict[str, list[weakref.ref[Any]]] = {}  # of containers that may be named at the next look
        self._begun = time.time(), time.monotonic()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield them with their names, but for objects that have opened or made something since, such as a file: a number or a
        text may tell that they have, and after a restart they have to do so again.
        """
        for name, ref in [*self._found.items()]:
            place, before = ref(), self._handles[name]
            if place is not None and all(
                type(each) in VALUES or id(each) in before for each in [*vars(place).values()]
            ):
                yield name, place

    def is_time(self, value: Any) -> bool:
        """Whether a number was read from a clock since the loop began: after a restart it would tell another time."""
        clocks = zip(self._begun, (time.time(), time.monotonic()), strict=True)
        return type(value) is float and any(begun <= value <= now for begun, now in clocks)

    def keeps(self, value: object) -> bool:
        """Whether a container is saved if it changes."""
        return is_kept(value) and any(value is each for _, place in self for each in vars(place).values())

    def outgrown(self) -> Iterator[Variable]:
        """Yield once the containers of tensors and arrays that change, and are or will be too long to be saved.

        What they had at one look they still have at the next: others have results, such as the outputs of layers.
        """
        for path, name, value in [*self._containers()]:
            mark, before = self._ends.get(path), self._newest.pop(path, None)
            if mark in (None, ends_of(value)) or is_kept(value, whole=True):
                continue
            if before is None:
                newest = next(reversed(value.values() if type(value) is dict else value), None)
                self._newest[path] = [weakref.ref(each) for each in tensors_of(newest)]
                continue
            del self._ends[path]
            place, (_, called, where) = self._found[name](), self._variables[name]
            if type(place) is not Kept:
                key = path.removeprefix(f"{name}.")
                called, where = f"{called}.{key}", partial(line_in_class, type(place), key, where)
            elif not is_kept(value):
                del self._found[name]
            now = {id(each) for one in (value.values() if type(value) is dict else value) for each in tensors_of(one)}
            if any(id(each()) in now for each in before):
                yield Variable(value, called, where)

    def _containers(self) -> Iterator[tuple[str, str, Any]]:
        for name, place in self:
            for key, value in [*vars(place).items()]:
                if type(value) in CONTAINERS:
                    yield f"{name}.{key}", name, value


def find(beside: set[int], optimizers: Collection[int]) -> Iterator[Variable]:
    """Yield the containers and objects of a script that are not `beside`, by identity."""
    roots = [each for each in roots_of_script() if not each.name.rpartition(".")[2].startswith("__")]
    places = [*walk(roots).values()]
    cells = [each for place in places if issubclass(type(place.value), FunctionType) for each in parts_of(place)]
    several = [each for each in (*roots, *cells) if type(each.value) in CONTAINERS]
    containers = [each for each in several if type(each.value) is deque or is_kept(each.value)]  # a long list has data
    for each in (*containers, *(each for each in places if is_own_object(each.value, optimizers))):
        if id(each.value) not in beside:
            beside.add(id(each.value))
            yield each


def is_own_object(value: Any, optimizers: Collection[int]) -> bool:
    """Whether it is an object of one of the script's classes, but no model, no data and nothing that Unsaved names.

    What builds on a library's class, such as a thread, has more there that belongs to its attributes.
    """
    kind = type(value)
    return (
        all(each in BARE or is_of_user(each) for each in kind.__mro__)
        and kind.__weakrefoffset__ != 0
        and bool(own_attributes(value))
        and not has_state(kind)
        and not keeps_attributes(value)
        and not is_schedule(value, optimizers)
    )


def is_kept(value: Any, *, whole: bool = False) -> bool:
    """Whether a container can be saved; `whole`: also once a queue is full."""
    room = room_after([*value] if type(value) is deque else value, LONGEST)
    full = value.maxlen / len(value) if whole and type(value) is deque and value.maxlen and value else 1
    return room >= 0 and (LONGEST - room) * full <= LONGEST


def ends_of(value: Any) -> tuple[int, ...]:
    """Return what differs once a container is another one, or another element is its first or last."""
    values = value.values() if type(value) is dict else value
    return id(value), len(value), *(id(each) for way in (iter, reversed) for each in islice(way(values), 1))


def tensors_of(element: Any) -> list[torch.Tensor | np.ndarray]:
    """Return the tensors and arrays of several values that an element of a container is, or has in it."""
    parts = element if isinstance(element, tuple | list) else (element,)
    return [each for each in parts if isinstance(each, torch.Tensor | np.ndarray) and each.ndim > 0]
