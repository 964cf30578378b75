"""What the states of the passed objects contain, and whether the state of another object is among that; whether it changed."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slipway.train.snapshots.tensors import sum_of_bits
from slipway.train.user.found import GENERATORS, Variable, walk
from slipway.train.user.objects import Objects, path
from slipway.train.user.script_tensors import ScriptTensors
from slipway.train.user.sharding import local

TORCHS = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)  # whose states are no copies
FRESH = 624  # the position of a RandomState that nothing was drawn from since it was seeded
SOME = 64  # bytes that tell a stream of random numbers
MOST = 2**26  # bytes that are drawn of one at most between two boundaries


class SavedStates:
    """The states of all passed objects, as they are now."""

    def __init__(self, objects: Objects) -> None:
        """Nothing is copied but what `state_dict` copies."""
        self._kept: list[Any] = []  # states, so that no tensor gets the place in memory of another one
        self._places: set[int] = set()  # in memory, of tensors
        self._copies: set[Hashable] = set()  # what tensors contain, of objects whose states may be copies
        self._within: list[tuple[set[int], Any]] = []  # what an object leads to, and its state
        for name, parts in objects.named.items():
            for part, each in parts.items():
                self.add(each, path(name, part))

    def add(self, value: Any, name: str) -> None:
        """Take an object's state as saved, too."""
        state = value.state_dict()
        tensors = [*tensors_in(state)]
        self._kept.append(state)
        self._places |= {local(tensor).data_ptr() for tensor in tensors}
        if not isinstance(value, (*TORCHS, ScriptTensors)):
            self._copies |= {(tensor.shape, bits_of(tensor)) for tensor in tensors}
        if not isinstance(value, nn.Module):
            self._within.append(({*walk([Variable(value, name, str)])}, state))

    def has(self, value: Any) -> bool:
        """Whether the state of an object that was not passed is saved all the same, as part of another one's."""
        if isinstance(value, GENERATORS):
            forms = {*map(mark_of_state, forms_of(value))}
            states = [part for within, state in self._within if id(value) in within for part in parts_in(state)]
            return any(mark_of_state(each) in forms for each in states)
        if isinstance(value, nn.Module):
            return all(map(self.has_tensor, (*value.parameters(), *value.buffers())))
        state = value.state_dict()
        if isinstance(value, torch.optim.Optimizer):  # without tensors it has what the script gave it
            return all(map(self.has_tensor, tensors_in(state)))
        mark = mark_of_state(state)
        states = [part for within, found in self._within if id(value) in within for part in parts_in(found)]
        return any(mark == mark_of_state(each) for each in states if isinstance(each, Mapping))

    def has_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a part of a saved state."""
        if not tensor.numel() or local(tensor).data_ptr() in self._places:
            return True
        return bool(self._copies) and (tensor.shape, bits_of(tensor)) in self._copies


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping | list | tuple):
        for each in state.values() if isinstance(state, Mapping) else state:
            yield from tensors_in(each)


def parts_in(state: Any) -> Iterator[Any]:
    """Yield a state and all that is in it, but numbers and texts."""
    if isinstance(state, torch.Tensor | np.ndarray):
        yield state
    elif isinstance(state, Mapping | list | tuple):
        yield state
        for each in state.values() if isinstance(state, Mapping) else state:
            yield from parts_in(each)


def forms_of(generator: Any) -> Iterator[Any]:
    """Yield what a random generator returns as its state, in every form that it has."""
    if isinstance(generator, torch.Generator):
        yield generator.get_state()
    elif isinstance(generator, random.Random):
        yield generator.getstate()
    elif isinstance(generator, np.random.Generator):
        yield generator.bit_generator.state
    else:
        yield generator.get_state()
        yield generator.get_state(legacy=False)


def mark_of(value: Any) -> Hashable:
    """Return what differs once the state of an object is another one. Draws no random number."""
    if isinstance(value, nn.Module):
        return tuple(map(bits_of, (*value.parameters(), *value.buffers())))
    if isinstance(value, torch.Generator):
        return value.initial_seed(), value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return mark_of_state(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        state: Any = value.get_state(legacy=False)
        return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
    return mark_of_state(value.state_dict())


def is_drawn_on(before: Any, now: Any) -> bool:
    """Whether a RandomState got from one mark to the other by drawing, and not by a seed, which its class tells nobody. From a
    fresh state it may have come by the same seed again, so that does not count.
    """
    dice = np.random.RandomState()

    def drawn(mark: Any, count: int) -> bytes:
        dice.set_state({"bit_generator": "MT19937", "state": {"key": np.frombuffer(mark[0], np.uint32), "pos": 0}})
        return dice.bytes(count)

    return before[1] != FRESH and drawn(now, SOME) in drawn(before, MOST)


def mark_of_state(state: Any) -> Hashable:
    """The same of what a `state_dict` returns."""
    if isinstance(state, torch.Tensor):
        return bits_of(state)
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, Mapping):
        return tuple((repr(key), mark_of_state(each)) for key, each in state.items())
    if isinstance(state, list | tuple):
        return tuple(map(mark_of_state, state))
    return state if isinstance(state, int | float | str | None) else repr(state)


def bits_of(tensor: torch.Tensor) -> int:
    """Return a sum of the bits of this rank's part of a tensor, whatever their order in memory; waits for a GPU."""
    part = local(tensor.detach())
    if part.is_meta or is_lazy(tensor):
        return 0
    if part.layout is not torch.strided:
        return part._version
    return int(sum_of_bits(part.contiguous()))
