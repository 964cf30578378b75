"""What a script changes of the passed objects beside what their `state_dict` has: a temperature that is lowered in each step, a
memory bank that is no saved buffer, an optimizer's own count, which parameters are frozen.

It would be as the script builds it. What is too large for this is named (see Unsaved).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.data_attributes import LARGEST, LONGEST, decode, encode, is_of_user, room_after, same
from slipway.train.user.names import inside_of, without_wrappers
from slipway.train.user.objects import GeneratorState, Objects
from slipway.train.user.script_places import MARK, Kept, ScriptPlaces
from slipway.train.user.values import PLAIN, from_bytes, put_back, to_bytes

MODE = "training"  # each epoch sets it
FROZEN = "requires_grad"
CONTAINERS = (list, tuple, dict, deque, np.ndarray)
OF_OPTIMIZER = ("state", "param_groups", "defaults")  # which its state_dict has
Values = dict[str, Any]  # by the path of the attribute: a plain value, or bytes
Place = Any  # a module, or another object


class ModuleAttributes:
    """The attributes of the passed models' modules and of other passed objects of the script's own classes, and whether
    parameters get gradients.
    """

    def __init__(self, objects: Objects) -> None:
        """As the script has built them."""
        self._models = {name: without_wrappers(model) for name, model in objects.named_of_kind(nn.Module).items()}
        self._others = {
            name: each
            for name, each in objects.named_of_kind(object).items()
            if not isinstance(each, nn.Module | GeneratorState) and is_of_user(type(each)) and hasattr(each, "__dict__")
        }
        self._script: ScriptPlaces | None = None
        self._pending: Values = {}  # of the script, until its loop begins
        self._tensors: dict[str, tuple[weakref.ref[torch.Tensor], int | None]] = {}
        self._marks: Values = {}
        self._built: Values = {}
        self._note(self._places())

    def _note(self, found: Iterable[tuple[str, Place]]) -> None:
        places = [*found]
        self._tensors |= {
            key: (weakref.ref(value), version_of(value))
            for path, place in places
            for key, value in tensors_at(path, place)
        }
        values = dict(values_at(places))
        self._marks |= {path: mark_of(value) for path, value in values.items()}
        self._built |= encoded(values)

    def begin_loop(self, script: ScriptPlaces) -> None:
        """Add what the script has where its loop begins, and have that as it was in the snapshot."""
        self._script = script
        self._note(script)
        pending, self._pending = self._pending, {}
        if pending:
            self.load({**self.changed(), **pending})

    def changed(self) -> Values:
        """Return those that are not as the script has built them."""
        return {**self._changed(), **self._pending}

    def _changed(self) -> Values:
        places = [*self._places()]
        values = dict(values_at(places))
        found = encoded(
            {path: each for path, each in values.items() if not same(mark_of(each), self._marks.get(path, self))}
        )
        for path, place in places:
            for key, value in tensors_at(path, place):
                built, version = self._tensors.get(key, (None, None))
                if built is None or built() is not value or version_of(value) != version:
                    with suppress(ConfigurationError):
                        found[key] = to_bytes({"it": value.detach().cpu(), "device": value.device.type}, key)
        if self._script is not None:
            found = {path: each for path, each in found.items() if path[0] != MARK or not self._script.is_time(each)}
        return found

    @contextmanager
    def loaded_beside(self, changed: Mapping[str, Any]) -> Iterator[None]:
        """Load these once the block has loaded the objects' states. What a state sets by itself stays as that has set it: it may
        mean something else there, such as a count that begins where the last one ended.
        """
        self._pending = {path: value for path, value in changed.items() if path.startswith(MARK)}
        before = self._marks_now()
        yield
        now = self._marks_now()
        self.load(changed, {path for path in now if not same(now[path], before.get(path, self))})

    def _marks_now(self) -> dict[str, Any]:
        places = [*self._places()]
        marks = {path: mark_of(value) for path, value in values_at(places)}
        tensors = (each for path, place in places for each in tensors_at(path, place))
        return marks | {path: repr((id(value), version_of(value))) for path, value in tensors}

    def load(self, changed: Mapping[str, Any], left: Collection[str] = ()) -> None:
        """Have these be so, and all others of the models as the script has built them, but for those to be `left`."""
        places = [*self._places()]
        now = encoded(dict(values_at(places)))
        by_place: dict[str, Values] = {}
        for name, value in {**self._built, **changed}.items():
            by_place.setdefault(name.rpartition(".")[0], {})[name] = value
        for path, place in places:
            module = isinstance(place, nn.Module)
            for name, value in by_place.get(path, {}).items():
                if name in left or (not module and name not in changed):
                    continue
                key = name.removeprefix(f"{path}.")
                tensors = place._buffers if module and key in place._buffers else place.__dict__
                if isinstance(value, torch.Tensor) and "device" in (stored := from_bytes(value)):
                    tensors[key] = put_back(tensors.get(key), stored["it"].to(stored["device"]))
                elif not same(value, now.get(name, self)):
                    place.__dict__[key] = decode(value, place.__dict__.get(key))
            for key, parameter in place._parameters.items() if module else ():
                if parameter is not None and parameter.is_leaf:
                    frozen = by_place.get(f"{path}.{key}", {})
                    parameter.requires_grad_(frozen.get(f"{path}.{key}.{FROZEN}", parameter.requires_grad))

    def _places(self) -> Iterator[tuple[str, Place]]:
        for name, model in self._models.items():
            for path, module in model.named_modules(prefix=name):
                if inside_of(module):
                    continue
                yield path, module
                if is_of_user(type(module)):  # which may have settings, and change them
                    attributes = vars(module).items()
                    yield from (
                        (f"{path}.{key}", each) for key, each in attributes if key[0] != "_" and is_settings(each)
                    )
        yield from self._others.items()
        yield from self._script or ()


def is_short_container(value: Any) -> bool:
    """Whether it is a container that is short enough to be saved."""
    return type(value) in CONTAINERS and room_after([*value] if type(value) is deque else value, LONGEST) >= 0


def values_at(places: Iterable[tuple[str, Place]]) -> Iterator[tuple[str, Any]]:
    """Yield what is saved of the attributes of some objects, but tensors, with their paths."""
    for path, place in places:
        own, module = type(place) is Kept or is_of_user(type(place)), isinstance(place, nn.Module)
        hidden = "_" if module else "__"  # what torch's modules keep for themselves
        for key, value in vars(place).items():
            if key == MODE or key.startswith(hidden) or (not module and key in OF_OPTIMIZER):
                continue
            if type(value) in PLAIN or (own and is_short_container(value)):
                yield f"{path}.{key}", value
        for key, parameter in place._parameters.items() if module else ():
            if parameter is not None:
                yield f"{path}.{key}.{FROZEN}", parameter.requires_grad


def encoded(values: Mapping[str, Any]) -> Values:
    """Return plain values as they are, and containers as bytes, but for those with something in them that cannot be saved."""
    found = {path: value if type(value) in PLAIN else encode(value, path) for path, value in values.items()}
    return {path: value for path, value in found.items() if value is not None or values[path] is None}


def mark_of(value: Any) -> Any:
    """Return what differs once a value is another one: of a container of plain values a text, which is made much faster than its
    bytes.
    """
    if type(value) in PLAIN:
        return value
    return repr(value) if is_plain(value) else encode(value, "")


def is_plain(value: Any) -> bool:
    """Whether a value, or all that is in it, is a number, a text, True, False or None."""
    if type(value) in PLAIN:
        return True
    parts = (*value, *value.values()) if type(value) is dict else value
    return type(value) in (list, tuple, dict, deque) and all(map(is_plain, parts))


def is_settings(value: Any) -> bool:
    """Whether an object only has values by name."""
    return type(value) is SimpleNamespace or (
        is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")
    )


def version_of(tensor: torch.Tensor) -> int | None:
    """Return what counts how often a tensor was changed where it is; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def is_short(value: Any) -> bool:
    """Whether it is a tensor that takes part in no graph, and is short enough to be saved."""
    return (
        type(value) in (torch.Tensor, nn.Buffer)
        and not value.requires_grad
        and value.layout is torch.strided
        and not value.is_meta
        and value.nbytes <= LARGEST
    )


def tensors_at(path: str, place: Place) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that an object has beside its state, as far as they are saved: those that modules of the script's classes
    have as attributes, and buffers that are not persistent.
    """
    own = vars(place) if is_of_user(type(place)) else {}
    unsaved = (
        {key: place._buffers[key] for key in place._non_persistent_buffers_set} if isinstance(place, nn.Module) else {}
    )
    for key, value in {**own, **unsaved}.items():
        if is_short(value):
            yield f"{path}.{key}", value
