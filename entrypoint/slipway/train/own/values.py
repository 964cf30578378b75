"""Values of a user's objects as JSON and tensors, and back. Nothing is pickled, so there are values that are refused.

A list stays a list. Everything else that JSON does not have becomes an object with one key, which names its kind:
`{"tuple": […]}`, `{"mapping": [[key, value], …]}`, `{"tensor": "state.0.exp_avg"}`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from slipway.protocol.mistake import ConfigurationError
from slipway.train.own.sharding import is_sharded
from slipway.train.snapshots.tensors import DTYPES, safetensors_chunks

ALLOWED = (
    "Allowed are tensors, numbers, strings, None, True and False, numpy's arrays and numbers, and lists, tuples and "
    "dictionaries of these, with strings or integers as keys."
)
DEEPEST = 100  # levels, well below Python's own limit


def pack(value: Any, path: str, tensors: dict[str, torch.Tensor], name: str = "", depth: int = 0) -> Any:
    """Return `value` as JSON; its tensors go into `tensors`, under names that begin with `name`.

    Raises ConfigurationError, which names the `path`, for a value that is not allowed.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"tensor": add_tensor(value, path, tensors, name)}
    if isinstance(value, np.ndarray | np.generic):
        return pack_array(value, path, tensors, name)
    if depth == DEEPEST:
        raise ConfigurationError(f"{path}: more than {DEEPEST} levels, or a value that contains itself. {ALLOWED}")
    children = children_of(value, path)
    packed = [
        [key, pack(child, f"{path}[{json.dumps(key)}]", tensors, f"{name}.{key}" if name else str(key), depth + 1)]
        for key, child in children
    ]
    if isinstance(value, Mapping):
        return {"counter" if isinstance(value, Counter) else "mapping": packed}
    parts = [child for _, child in packed]
    return parts if isinstance(value, list) else {"tuple": parts}


def pack_plain(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """`pack` for values that are not spread over ranks. Raises ConfigurationError for those that are, too."""
    packed = pack(value, path, tensors)
    if sharded := [name for name, tensor in tensors.items() if is_sharded(tensor)]:
        raise ConfigurationError(
            f"{path}, {sharded[0]}: a tensor that is spread over ranks, which only objects may have."
        )
    return packed


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
    """Undo `pack`; tensors are those of `tensors`. Raises KeyError, ValueError for what `pack` never made."""
    if isinstance(packed, list):
        return [unpack(child, tensors) for child in packed]
    if not isinstance(packed, dict):
        return packed
    [(kind, inside)] = packed.items()
    return UNPACKED[kind](inside, tensors)


def unpack_items(items: list[Any], tensors: Mapping[str, torch.Tensor]) -> dict[str | int, Any]:
    """Undo `pack` for the items of a mapping."""
    return {key: unpack(child, tensors) for key, child in items}


def unpack_array(described: list[Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `pack_array` for an array."""
    kind, shape, name = described
    return np.frombuffer(tensors[name].numpy().tobytes(), np.dtype(kind)).reshape(shape).copy()


UNPACKED: Mapping[str, Callable[[Any, Mapping[str, torch.Tensor]], Any]] = {
    "float": lambda text, _: float(text),
    "tensor": lambda name, tensors: tensors[name],
    "tuple": lambda parts, tensors: tuple(unpack(part, tensors) for part in parts),
    "mapping": unpack_items,
    "counter": lambda items, tensors: Counter(unpack_items(items, tensors)),
    "array": unpack_array,
    "scalar": lambda described, tensors: unpack_array(described, tensors)[()],
}


def to_bytes(value: Any, path: str) -> torch.Tensor:
    """Return a value that `pack` takes as one uint8 tensor of shape (bytes,)."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack_plain(value, path, tensors)).encode()
    tensors = {f"t.{name}": tensor for name, tensor in tensors.items()} | {
        "json": torch.tensor(list(text), dtype=torch.uint8)
    }
    return torch.frombuffer(bytearray(b"".join(safetensors_chunks(tensors))), dtype=torch.uint8)


def from_bytes(stored: torch.Tensor) -> Any:
    """Undo `to_bytes`."""
    tensors = load(stored.numpy().tobytes())
    text = bytes(tensors.pop("json").numpy())
    return unpack(json.loads(text), {name.removeprefix("t."): tensor for name, tensor in tensors.items()})
