"""What samplers, data sets and loaders of the script's keep as plain attributes while they are read: the number of the epoch, an
order that is shuffled further each time, weights of the samples.

No `state_dict` has them, so they are saved beside the random generators of the same loader.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset

from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.found import is_users
from slipway.train.user.values import DEEPEST, PLAIN, from_bytes, put_back, to_bytes

LONGEST = 2**12  # values of a list that is saved: each snapshot has it for each rank
LARGEST = 2**16  # bytes of an array
SMALL = 2**12  # bytes of one that counts as a single value
LEADING = 2**10  # values of a longer one that are compared
OF_USERS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()  # for each class, since snapshots ask it of every module
Stored = dict[str, Any]  # by attribute: a plain value, or what `to_bytes` made of another


class DataAttributes:
    """The plain attributes of one object that data are read from."""

    def __init__(self, inner: Any) -> None:
        """As they are now, as the script has built them."""
        self.inner, self._built = inner, stored(inner)
        self.name = ""  # what the script calls it, if that is known
        self._long = dict(long_ones(inner))

    @property
    def kind(self) -> str:
        """The name of the class."""
        return f"{type(self.inner).__module__}.{type(self.inner).__qualname__}"

    def state(self) -> dict[str, Any]:
        """Return those that are not as the script has built them."""
        changed = {key: value for key, value in stored(self.inner).items() if not same(value, self._built.get(key))}
        shared = [key for key in changed if key not in vars(self.inner)]  # of the class
        return {"kind": self.kind, "name": self.name, "attributes": changed, "shared": shared}

    def load(self, state: dict[str, Any]) -> None:
        """Have these be so, and all others as the script has built them."""
        now, own, had = stored(self.inner), vars(self.inner), attributes(self.inner)
        for key, value in (self._built | state["attributes"]).items():
            if same(value, now.get(key)):
                continue
            found = decode(value, had.get(key))
            if key in state.get("shared", ()) or (key not in own and key not in state["attributes"]):
                kinds = type(self.inner).__mro__
                setattr(next((kind for kind in kinds if key in vars(kind)), kinds[0]), key, found)
            else:
                own[key] = found

    def outgrown(self) -> Iterator[str]:
        """Yield once the names of those that are too long to be saved, and were changed where they are."""
        now = dict(long_ones(self.inner))
        for key, (value, mark) in [*self._long.items()]:
            if key in now and now[key][0] is value and now[key][1] != mark:
                del self._long[key]
                yield key


def is_state(state: Any) -> bool:
    """Whether it is one of `DataAttributes`, and not one of a generator."""
    return isinstance(state, dict) and "attributes" in state


def keeps_attributes(place: Any) -> bool:
    """Whether data are read by an object, which is a sampler, a subset, or of a class of the user's."""
    kind = type(place)
    if not isinstance(getattr(place, "__dict__", None), dict) or isinstance(place, type):
        return False
    if kind is TensorDataset:  # whose labels a script may correct
        return True
    if issubclass(kind, Sampler | Subset):
        return kind.__module__.partition(".")[0] != "slipway"
    return (issubclass(kind, Dataset | DataLoader) or hasattr(kind, "__iter__")) and is_of_user(kind)


def is_of_user(kind: type) -> bool:
    """Whether a class is of a module of the user's."""
    if kind not in OF_USERS:
        OF_USERS[kind] = is_users(vars(sys.modules.get(kind.__module__, sys)))
    return OF_USERS[kind]


def attributes_of(places: Iterable[Any], known: Sequence[DataAttributes]) -> list[DataAttributes]:
    """Return the attributes of those of the places that keep some: those that are known, with what they were built with."""
    return [
        next((each for each in known if each.inner is place), None) or DataAttributes(place)
        for place in places
        if keeps_attributes(place)
    ]


def stored(place: Any) -> Stored:
    """Return the attributes that are plain values, or short lists, dictionaries and arrays of these."""
    hidden = "_" if isinstance(place, DataLoader) else "__"  # what torch's keeps for itself
    found: Stored = {}
    for key, value in attributes(place).items():
        if key.startswith(hidden):
            continue
        if type(value) in PLAIN:
            found[key] = value
        elif (encoded := encode(value, key)) is not None:
            found[key] = encoded
    return found


def encode(value: Any, key: str) -> torch.Tensor | None:
    """Return a short list, dictionary, tuple, deque or array as bytes; None for what is not saved."""
    plain = list(value) if type(value) is deque else value
    if room_after(plain, LONGEST) >= 0:
        with suppress(ConfigurationError):
            return to_bytes({"it": plain, "most": value.maxlen if type(value) is deque else 0}, key)
    return None


def decode(value: Any, had: Any) -> Any:
    """Undo `encode`, in the lists, dictionaries and tensors of what there is."""
    if not isinstance(value, torch.Tensor):
        return value
    found = from_bytes(value)
    before = found["it"]
    if type(before) is list and found.get("most", 0) != 0:
        before = deque(before, found["most"])
    return put_back(had, before)


def attributes(place: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, and those that the user's classes have for all of theirs."""
    kinds = [kind for kind in reversed(type(place).__mro__) if is_of_user(kind)]
    return {key: value for each in (*kinds, place) for key, value in [*vars(each).items()]}


def room_after(value: Any, room: int, levels: int = DEEPEST) -> int:
    """Return how many of so many values are left after those in `value`; less than 0 for what is not saved, such as a list that
    contains itself.
    """
    if type(value) in PLAIN or isinstance(value, np.generic):
        return room - 1
    if type(value) in (np.ndarray, torch.Tensor):
        plain = isinstance(value, np.ndarray) or (
            value.is_cpu and value.layout is torch.strided and not value.requires_grad
        )
        return room - 1 - value.nbytes // SMALL if plain and value.nbytes <= LARGEST else -1
    if type(value) not in (list, tuple, dict) or len(value) > room or not levels:
        return -1
    for each in value.values() if type(value) is dict else value:
        room = room_after(each, room, levels - 1)
        if room < 0:
            break
    return room


def long_ones(place: Any) -> Iterator[tuple[str, tuple[Any, bytes]]]:
    """Yield the lists and arrays of a sampler or loader that are too long to be saved, each with what tells it from another."""
    if type(place) is TensorDataset and encode(place.tensors, "") is None:
        yield "tensors", (place.tensors, repr([each._version for each in place.tensors]).encode())
    if isinstance(place, Dataset):  # which keeps the data themselves, and may fill a cache
        return
    for key, value in attributes(place).items():
        has_length = type(value) is list or (type(value) in (np.ndarray, torch.Tensor) and value.ndim > 0)
        if has_length and len(value) > LEADING and room_after(value, LONGEST) < 0:
            start = value[:LEADING]
            if room_after(start, LEADING) >= 0:
                with suppress(ConfigurationError):
                    yield key, (value, to_bytes({"it": start}, key).numpy().tobytes())


def same(one: Any, other: Any) -> bool:
    """Whether two values of `Stored` are the same."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
