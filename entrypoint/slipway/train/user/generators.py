"""The random generators of a loop: the process's own, and those that a loader and its samplers keep for themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from slipway.train.snapshots.state import other_random_states, random_states, set_random_states
from slipway.train.user.data_attributes import DataAttributes
from slipway.train.user.found import GENERATORS
from slipway.train.user.sources import inner_of, parts_of

RandomStates = Mapping[str, torch.Tensor]
Generator = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
Drawing = Generator | DataAttributes  # what decides which data come next
SAMPLERS = ("sampler", "batch_sampler", "inner")
MOST = 1000  # objects that are looked at: one may make new ones whenever it is asked


def all_random_states(device: torch.device) -> RandomStates:
    """Return the states of all generators of the process that a loop may use."""
    return random_states(device) | other_random_states()


def state_of_generator(generator: Drawing) -> Any:
    """Return the state of a generator, or of attributes of the data, as a snapshot can hold it."""
    if isinstance(generator, DataAttributes):
        return generator.state()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    version, numbers, gauss = generator.getstate()
    return version, np.asarray(numbers, np.uint32), gauss


def set_generator(generator: Drawing, state: Any) -> None:
    """Undo `state_of_generator`."""
    if isinstance(generator, DataAttributes):
        generator.load(state)
    elif isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers.tolist()), gauss))


def generators_of(loader: Any) -> list[Generator]:
    """Return the random generators that a loader and its samplers have, under whichever names, each once."""
    return [
        each
        for each in read_through(loader)
        if isinstance(each, GENERATORS) and not isinstance(each, random.SystemRandom)
    ]


def read_through(loader: Any) -> list[Any]:
    """Return what decides in a loader which data come next, each once: itself, samplers, generators, then data sets."""
    found: dict[int, Any] = {}
    inner = inner_of(loader)
    waiting = [inner, loader]
    while waiting and len(found) < MOST:
        place = waiting.pop(0)
        if place is not None and id(place) not in found:
            found[id(place)] = place
            waiting += () if isinstance(place, GENERATORS) else [getattr(place, name, None) for name in SAMPLERS]
            waiting += parts_with_generators(place)
    data = parts_of(getattr(inner, "dataset", None), "dataset", "datasets", "inner")
    return [*{id(each): each for each in (*found.values(), *data)}.values()]


def parts_with_generators(place: Any) -> Iterator[Any]:
    """Yield the generators and samplers among an object's attributes, and in short lists and dictionaries there."""
    for value in [*getattr(place, "__dict__", {}).values()]:
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        if len(several) < MOST:
            yield from (each for each in several if isinstance(each, (*GENERATORS, Sampler)))


@dataclass(frozen=True)
class Draws:
    """The states of random generators: the process's own and those of a loader, with the attributes of its data."""

    random: RandomStates
    generators: Sequence[Any]

    def restore(self, device: torch.device, generators: Sequence[Drawing]) -> None:
        """Have all of them in these states."""
        set_random_states(device, self.random)
        for generator, state in zip(generators, self.generators, strict=False):
            set_generator(generator, state)
