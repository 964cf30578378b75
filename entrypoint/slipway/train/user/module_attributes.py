"""What a script changes of the passed objects beside what their `state_dict` has: a temperature that is lowered in each step, a
memory bank that is no saved buffer, an optimizer's own count, which parameters are frozen.

It would be as the script builds it. What is too large for this is named (see Unsaved).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.data_attributes import LARGEST, decode, encode, is_of_user, same
from slipway.train.user.names import inside_of, without_wrappers
from slipway.train.user.objects import GeneratorState, Objects
from slipway.train.user.values import PLAIN, from_bytes, put_back, to_bytes

MODE = "training"  # each epoch sets it
FROZEN = "requires_grad"
OF_OPTIMIZER = ("state", "param_groups", "defaults")  # which its state_dict has
Values = dict[str, Any]  # by the path of the attribute: a plain value, or bytes
Place = nn.Module | Any


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
        self._tensors = {
            path: (weakref.ref(value), version_of(value))
            for path, place in self._places()
            for path, value in tensors_at(path, place)
        }
        self._built = self._values()

    def _values(self) -> Values:
        """Return all of them but tensors."""
        found: Values = {}
        for path, place in self._places():
            own, module = is_of_user(type(place)), isinstance(place, nn.Module)
            hidden = "_" if module else "__"  # what torch's modules keep for themselves
            for key, value in vars(place).items():
                if key == MODE or key.startswith(hidden) or (not module and key in OF_OPTIMIZER):
                    continue
                if type(value) in PLAIN:
                    found[f"{path}.{key}"] = value
                elif own and not isinstance(value, torch.Tensor) and (encoded := encode(value, key)) is not None:
                    found[f"{path}.{key}"] = encoded
            for key, parameter in place._parameters.items() if module else ():
                if parameter is not None:
                    found[f"{path}.{key}.{FROZEN}"] = parameter.requires_grad
        return found

    def changed(self) -> Values:
        """Return those that are not as the script has built them."""
        found = {key: value for key, value in self._values().items() if not same(value, self._built.get(key, self))}
        for path, place in self._places():
            for key, value in tensors_at(path, place):
                built, version = self._tensors.get(key, (None, None))
                if built is None or built() is not value or version_of(value) != version:
                    with suppress(ConfigurationError):
                        found[key] = to_bytes({"it": value.detach().cpu(), "device": value.device.type}, key)
        return found

    def load(self, changed: Mapping[str, Any]) -> None:
        """Have these be so, and all others of the models as the script has built them."""
        now = self._values()
        for path, place in self._places():
            module = isinstance(place, nn.Module)
            wanted = {**self._built, **changed} if module else changed
            for name in [name for name in wanted if name.rpartition(".")[0] == path]:
                key, value = name.removeprefix(f"{path}."), wanted[name]
                tensors = place._buffers if module and key in place._buffers else vars(place)
                if isinstance(value, torch.Tensor) and "device" in (stored := from_bytes(value)):
                    tensors[key] = put_back(tensors.get(key), stored["it"].to(stored["device"]))
                elif not same(value, now.get(name, self)):
                    vars(place)[key] = decode(value, vars(place).get(key))
            for key, parameter in place._parameters.items() if module else ():
                if parameter is not None and parameter.is_leaf:
                    parameter.requires_grad_(wanted.get(f"{path}.{key}.{FROZEN}", parameter.requires_grad))

    def _places(self) -> Iterator[tuple[str, Place]]:
        for name, model in self._models.items():
            for path, module in model.named_modules(prefix=name):
                if not inside_of(module):
                    yield path, module
                    # A model's settings, which the script may change there.
                    yield from ((f"{path}.{key}", each) for key, each in vars(module).items() if is_settings(each))
        yield from self._others.items()


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
