"""Values of a user's objects as JSON and tensors, and back. Nothing is pickled, so there are values that are refused.

A list stays a list. Everything else that JSON does not have becomes an object with one key, which names its kind:
`{"tuple": […]}`, `{"mapping": [[key, value], …]}`, `{"tensor": "state.0.exp_avg"}`. A list, mapping or array that was met before
is `{"same": number}`, so that one list under two names comes back as one.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.tensors import DTYPES, safetensors_chunks
from slipway.train.user.sharding import is_sharded

ALLOWED = (
    "Allowed are tensors, numbers, strings, None, True and False, numpy's arrays and numbers, and lists, tuples and "
    "dictionaries of these (dict, OrderedDict, Counter, defaultdict of a builtin type), with strings or integers as keys."
)
PLAIN = (bool, int, float, str, type(None))
DEEPEST = 100  # levels, well below Python's own limit
FACTORIES = {each.__name__: each for each in (bool, int, float, str, list, tuple, dict, set, Counter, OrderedDict)}
MAPPINGS = {dict: "mapping", Counter: "counter", OrderedDict: "ordered"}


def pack(value: Any, path: str, tensors: dict[str, torch.Tensor], name: str = "") -> Any:
    """Return `value` as JSON; its tensors go into `tensors`, under names that begin with `name`.

    Raises ConfigurationError, which names the `path`, for a value that is not allowed.
    """
    return Packing(tensors).pack(value, path, name)


def pack_plain(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """`pack` for values that are not spread over ranks. Raises ConfigurationError for those that are, too."""
    packed = pack(value, path, tensors)
    if sharded := [name for name, tensor in tensors.items() if is_sharded(tensor)]:
        raise ConfigurationError(
            f"{path}, {sharded[0]}: a tensor that is spread over ranks, which only objects may have."
        )
    return packed


class Packing:
    """Packs values, and remembers those that may change, by which two names of one value are known."""

    def __init__(self, tensors: dict[str, torch.Tensor], others: list[str] | None = None) -> None:
        """`others`: mappings of other classes are packed as dictionaries and described here; None: they are refused."""
        self._tensors, self._others = tensors, others
        self._known: dict[
            int, tuple[Any, Any]
        ] = {}  # by identity: the value, so that no other one gets it, and its JSON
        self._count = 0

    def pack(self, value: Any, path: str, name: str = "", depth: int = 0) -> Any:
        """See the function."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, torch.Tensor):
            packed = {"tensor": add_tensor(value, path, self._tensors, name)}
            self._known[id(value)] = value, packed
            return packed
        if isinstance(value, np.ndarray | np.generic):
            packed = pack_array(value, path, self._tensors, name)
            return self._note(value, packed) if isinstance(value, np.ndarray) else packed
        if depth == DEEPEST:
            raise ConfigurationError(f"{path}: more than {DEEPEST} levels, or a value that contains itself. {ALLOWED}")
        children = [
            [key, self.pack(child, f"{path}[{json.dumps(key)}]", f"{name}.{key}" if name else str(key), depth + 1)]
            for key, child in children_of(value, path)
        ]
        if isinstance(value, Mapping):
            return self._note(value, self._pack_mapping(value, children, path))
        parts = [child for _, child in children]
        return self._note(value, parts) if isinstance(value, list) else {"tuple": parts}

    def _note(self, value: Any, packed: Any) -> Any:
        self._known[id(value)] = value, {"same": self._count}
        self._count += 1
        return packed

    def _pack_mapping(self, value: Mapping[Any, Any], items: list[Any], path: str) -> dict[str, Any]:
        kind = type(value)
        if kind is OrderedDict and isinstance(metadata := getattr(value, "_metadata", None), Mapping):
            return {"state": [items, self._pack_metadata(metadata, f"{path}._metadata")]}
        if kind in MAPPINGS:
            return {MAPPINGS[kind]: items}
        odd = f"{path}: {describe(value)}"
        if kind is defaultdict and isinstance(value, defaultdict):
            if value.default_factory in (None, *FACTORIES.values()):
                return {"default": [getattr(value.default_factory, "__name__", None), items]}
            odd += " with a factory of its own"
        if self._others is None:
            raise ConfigurationError(f"{odd}. It would come back as a plain dictionary. {ALLOWED}")
        self._others.append(odd)
        return {"mapping": items}

    def _pack_metadata(self, metadata: Mapping[str, Any], path: str) -> list[Any]:
        """Most of a model's modules have equal ones, which are stored once, with the names of these modules."""
        groups: dict[str, tuple[Any, list[str]]] = {}
        for module, own in metadata.items():
            groups.setdefault(repr(own), (own, []))[1].append(module)
        return [[self.pack(own, f"{path}[{json.dumps(names[0])}]"), names] for own, names in groups.values()]


def children_of(value: Any, path: str) -> list[tuple[str | int, Any]]:
    """Return the items of a mapping, list or tuple with their keys. Raises ConfigurationError for anything else."""
    if type(value) in (list, tuple, torch.Size):
        return list(enumerate(value))
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{path}: {describe(value)}. A snapshot cannot contain it. {ALLOWED}")
    for key in value:
        if type(key) not in (str, int):
            raise ConfigurationError(f"{path}: the key {key!r}, {describe(key)}. {ALLOWED}")
    return list(value.items())


def describe(value: Any) -> str:
    """Return what kind of value it is, with an article: `a function`, `an object of datetime.date`."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
    return f"an object of {kind.__module__}.{kind.__qualname__}"


def add_tensor(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor], name: str) -> str:
    """Add a tensor under `name`, or a similar name if that is taken. Raises ConfigurationError for one that is not allowed."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not is_sharded(tensor):
        raise ConfigurationError(f"{path}: {describe(tensor)}, a tensor of a class of its own, which cannot be saved.")
    if kind not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        odd = "on the meta device" if tensor.is_meta else kind if kind not in DTYPES else str(tensor.layout)
        raise ConfigurationError(
            f"{path}: a tensor that is {odd.removeprefix('torch.')}, which safetensors does not hold. Allowed are dense "
            f"tensors of {', '.join(DTYPES)}."
        )
    while name in tensors:
        name += "+"
    tensors[name] = tensor.detach()
    return name


def pack_array(value: Any, path: str, tensors: dict[str, torch.Tensor], name: str) -> Any:
    """Return one of numpy's arrays or numbers as JSON, with its bytes as a tensor."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufcmM" or array.dtype.fields:
        raise ConfigurationError(f"{path}: an array of {array.dtype}. {ALLOWED}")
    raw = torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return {kind: [array.dtype.str, list(array.shape), add_tensor(raw, path, tensors, name)]}


def unpack(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `pack`; tensors are those of `tensors`. Raises KeyError, ValueError, IndexError for what `pack` never made."""
    return Unpacking(tensors).unpack(packed)


class Unpacking:
    """Undoes `Packing`."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by the names under which they were packed."""
        self._tensors = tensors
        self._made: list[Any] = []  # in the order in which `Packing` counts them

    def unpack(self, packed: Any) -> Any:
        """See the function."""
        if isinstance(packed, list):
            return self._note([self.unpack(child) for child in packed])
        if not isinstance(packed, dict):
            return packed
        [(kind, inside)] = packed.items()
        return UNPACKED[kind](self, inside)

    def items(self, items: list[Any]) -> dict[str | int, Any]:
        """The items of a mapping."""
        return {key: self.unpack(child) for key, child in items}

    def mapping(self, kind: Callable[[Any], Any], items: list[Any]) -> Any:
        """A mapping that `kind` makes of its items."""
        return self._note(kind(self.items(items)))

    def state(self, inside: list[Any]) -> Any:
        """A state of a module, with its metadata."""
        items, groups = inside
        state: Any = OrderedDict(self.items(items))
        state._metadata = OrderedDict()
        for own, names in groups:
            own = self.unpack(own)
            state._metadata.update((name, dict(own)) for name in names)
        return self._note(state)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor."""
        return self._tensors[name]

    def array(self, described: list[Any]) -> Any:
        """One of numpy's arrays."""
        return self._note(self.scalar(described, whole=True))

    def scalar(self, described: list[Any], whole: bool = False) -> Any:
        """One of numpy's numbers, or the `whole` array of them."""
        kind, shape, name = described
        array = np.frombuffer(self._tensors[name].numpy().tobytes(), np.dtype(kind)).reshape(shape).copy()
        return array if whole else array[()]

    def same(self, number: int) -> Any:
        """What was met before."""
        return self._made[number]

    def _note(self, made: Any) -> Any:
        self._made.append(made)
        return made


UNPACKED: Mapping[str, Callable[[Unpacking, Any], Any]] = {
    "float": lambda _, text: float(text),
    "tensor": Unpacking.tensor,
    "tuple": lambda own, parts: tuple([own.unpack(part) for part in parts]),
    "mapping": lambda own, items: own.mapping(dict, items),
    "counter": lambda own, items: own.mapping(Counter, items),
    "ordered": lambda own, items: own.mapping(OrderedDict, items),
    "default": lambda own, inside: own.mapping(partial(defaultdict, FACTORIES.get(inside[0])), inside[1]),
    "state": Unpacking.state,
    "array": Unpacking.array,
    "scalar": Unpacking.scalar,
    "same": Unpacking.same,
}


def to_bytes(value: Any, path: str) -> torch.Tensor:
    """Return a value as one uint8 tensor of shape (bytes,); mappings of other classes as dictionaries. Raises as `pack` does."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(Packing(tensors, []).pack(value, path)).encode()
    tensors = {f"t.{name}": tensor for name, tensor in tensors.items()}
    tensors["json"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return torch.frombuffer(bytearray(b"".join(safetensors_chunks(tensors))), dtype=torch.uint8)


def from_bytes(stored: torch.Tensor) -> Any:
    """Undo `to_bytes`."""
    tensors = load(stored.numpy().tobytes())
    text = bytes(tensors.pop("json").numpy())
    return unpack(json.loads(text), {name.removeprefix("t."): tensor for name, tensor in tensors.items()})


def put_back(now: Any, before: Any) -> Any:
    """Return `before`, in the lists, dictionaries and tensors of `now` as far as they are alike: the script may have other names
    for them.
    """
    if type(now) is not type(before):
        return before
    if isinstance(now, dict):
        values = {key: put_back(now.get(key), value) for key, value in before.items()}
        now.clear()
        now.update(values)
    elif isinstance(now, list):
        now[:] = [put_back(one, other) for one, other in zip_longest(now[: len(before)], before)]
    elif isinstance(now, tuple) and len(now) == len(before):
        return tuple([put_back(one, other) for one, other in zip(now, before, strict=True)])
    elif isinstance(now, deque):
        now.clear()
        now.extend(before)
    elif isinstance(now, np.ndarray | torch.Tensor) and (now.shape, now.dtype) == (before.shape, before.dtype):
        now[...] = before
    else:
        return before
    return now
