"""A micro-batch as text and bytes that other ranks rebuild: dense tensors and plain values, nested in any way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, str, type(None))
ALLOWED = (
    "A replay sends dense tensors, numbers, strings, None, True and False, and lists, tuples and dictionaries of these "
    "with strings or integers as keys"
)


class ReplayError(Exception):
    """A micro-batch cannot be replayed in this training; the message says why."""


def take_apart(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON. A copy of each of its tensors goes into `tensors`, by its path, which begins with `path`.

    Raises ReplayError, which names the path, for a value that other ranks cannot rebuild.
    """
    if isinstance(value, torch.Tensor):
        require_dense(value, path)
        tensors[path] = value.detach().clone().resolve_conj().resolve_neg()
        return {"tensor": path}
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        parts = [take_apart(part, f"{path}[{number}]", tensors) for number, part in enumerate(value)]
        return parts if type(value) is list else {"tuple": parts}
    if isinstance(value, Mapping):
        if odd := [key for key in value if type(key) not in (str, int)]:
            raise ReplayError(f"{path} has the key {odd[0]!r}. {ALLOWED}")
        return {"mapping": [[key, take_apart(part, f"{path}[{key!r}]", tensors)] for key, part in value.items()]}
    raise ReplayError(f"{path} is an object of {type(value).__qualname__}. {ALLOWED}")


def put_together(parts: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `take_apart`, with tensors in memory of their own. A mapping of any kind becomes a dictionary."""
    if isinstance(parts, list):
        return [put_together(part, tensors) for part in parts]
    if not isinstance(parts, dict):
        return parts
    [(kind, inside)] = parts.items()
    if kind == "tensor":
        return tensors[inside].clone()
    if kind == "tuple":
        return tuple(put_together(part, tensors) for part in inside)
    return {key: put_together(part, tensors) for key, part in inside}


def require_dense(tensor: torch.Tensor, path: str) -> None:
    """Raise ReplayError for a tensor that is more, or other, than its values in memory."""
    odd = ""
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        odd = f"of the class {type(tensor).__qualname__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        odd = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    elif tensor.is_meta or tensor.is_quantized:
        odd = "on the meta device" if tensor.is_meta else "quantized"
    if odd:
        raise ReplayError(f"{path} is a tensor that is {odd}. {ALLOWED}")


def describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Return how a tensor is rebuilt from its bytes, for JSON."""
    return {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "bytes": tensor.numel() * tensor.element_size(),
        "on_device": tensor.device.type != "cpu",
    }


def rebuild(piece: torch.Tensor, form: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """Return the tensor that `describe` described, in memory of its own, aligned alike on all ranks."""
    data = piece.clone().view(getattr(torch, form["dtype"])).as_strided(form["shape"], form["stride"])
    return data.to(device) if form["on_device"] else data


def make_room(size: int) -> torch.Tensor:
    """Return memory for so many bytes that another rank sends."""
    return torch.empty(size, dtype=torch.uint8)
