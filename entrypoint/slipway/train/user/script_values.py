"""What a script keeps in plain values: numbers, tensors and containers in its variables, objects, modules and closures.

`slipway prove` compares them to say which of them a restart begins again. Most of them explain
nothing, so a training names none.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Sampler

from slipway.train.user.found import Variable, is_users, line_in_class, own_attributes, roots_of_script, walk

NUMBERS = (bool, int, float, complex, str, type(None), np.generic)
CONTAINERS = (dict, list, tuple, deque, set)
LARGEST = 2**24  # bytes of a tensor or array that is looked at: what is larger is a data set
OF_MODULES = {*vars(nn.Module())}  # attributes that torch gives each
FIRST = 1000  # elements of a container
DEEPEST = 3  # containers within one another


def values_of_script(passed: Iterable[object] = ()) -> Iterator[Variable]:
    """Yield them with the names that the script has for them, nearest first; of what was `passed` those of models alone."""
    roots = [each for each in roots_of_script() if not each.name.rpartition(".")[2].startswith("__")]
    saved = {*walk(Variable(each, "", str) for each in passed if not isinstance(each, nn.Module))}
    seen: set[str] = set()
    for place in (*roots, *walk(roots).values()):
        for each in () if id(place.value) in saved else values_at(place):
            if each.name not in seen:
                seen.add(each.name)
                yield each


def values_at(place: Variable) -> Iterator[Variable]:
    """Yield a value itself, or those that an object, a class or a function has."""
    value, name, where = place
    kind = type(value)
    if is_value(value):
        yield place
    elif issubclass(kind, CONTAINERS):
        if not name.endswith("]") and name.rpartition(".")[2] not in OF_MODULES:  # else it is a part of one
            yield Variable(plain(value), name, where)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield Variable(value.cache_info().currsize, name, where)
    elif issubclass(kind, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inside = [(key, cell.cell_contents) for key, cell in cells if cell != type(cell)()]
        yield from (Variable(each, key, where) for key, each in inside if is_value(each))
    elif issubclass(kind, type):
        if belongs_to_users(value):
            inside = [(key, each) for key, each in vars(value).items() if not key.startswith("__")]
            yield from (Variable(each, f"{name}.{key}", where) for key, each in inside if is_value(each))
    elif belongs_to_users(kind) or issubclass(kind, nn.Module | Dataset | Sampler):
        for key, each in own_attributes(value).items():
            if is_value(each) and not (issubclass(kind, nn.Module) and key in OF_MODULES):
                yield Variable(each, f"{name}.{key}", partial(line_in_class, kind, key, where))
        if issubclass(kind, nn.Module):
            for key, parameter in value._parameters.items():
                if parameter is not None:
                    yield Variable(parameter.requires_grad, f"{name}.{key}.requires_grad", where)


def is_value(value: Any) -> bool:
    """Whether it is a number, a text or a tensor that can be compared at each step."""
    if isinstance(value, torch.Tensor):
        return value.nbytes <= LARGEST and not value.requires_grad
    if isinstance(value, np.ndarray):
        return value.nbytes <= LARGEST and not isinstance(value, np.memmap)
    return isinstance(value, NUMBERS)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a container as lists of values, and its length; of anything else in it the class."""
    if issubclass(type(value), CONTAINERS) and depth < DEEPEST:
        parts = (
            value.items() if isinstance(value, dict) else sorted(map(repr, value)) if isinstance(value, set) else value
        )
        return [len(value), *(plain(each, depth + 1) for each in islice(parts, FIRST))]
    return value if is_value(value) else type(value).__name__


def belongs_to_users(kind: type) -> bool:
    """Whether a class is one of the script's."""
    module = sys.modules.get(kind.__module__)
    return module is not None and is_users(vars(module)) and bool(getattr(module, "__file__", ""))
