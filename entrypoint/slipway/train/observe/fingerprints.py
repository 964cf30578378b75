"""Hashes of tensors, and of what contains them. They are computed on the tensors' devices, know positions and draw nothing."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

LIMIT = 2**18  # words that are hashed at once: more are hashed in rows, and then the hashes of these
DEEPEST = 20  # levels of a value, which may contain itself; what is deeper is not compared
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
FACTORS: dict[torch.device, torch.Tensor] = {}


def hashes_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return a hash of each tensor's type, shape and values in their logical order, with one wait for each device."""
    rows = [(hash_of_text(f"{tensor.dtype} {tuple(tensor.shape)}"), hash_of_values(tensor)) for tensor in tensors]
    waiting: dict[torch.device, list[torch.Tensor]] = {}
    for _, row in rows:
        waiting.setdefault(row.device, []).append(row)
    numbers = {device: iter(torch.stack(each).tolist()) for device, each in waiting.items()}
    return [form ^ next(numbers[row.device]) for form, row in rows]


@torch.no_grad()
def hash_of_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return an int64 scalar on the tensor's device; -1 where values cannot be read, as on the meta device."""
    if tensor.is_meta:
        return torch.tensor(-1)
    try:
        # A DTensor, of which this rank has a part; the module of its type takes 0.4 s to import.
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()
        if tensor.is_sparse:
            tensor = torch.cat([part.reshape(-1).double() for part in (tensor._indices(), tensor._values())])
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
        bits = tensor.contiguous().view(-1).view(BITS[tensor.itemsize])
        if bits.nbytes % 8 == 0:
            bits = (bits.clone() if bits.storage_offset() * bits.itemsize % 8 else bits).view(torch.int64)
        return hash_of_words(bits.to(torch.int64))
    except (RuntimeError, NotImplementedError, KeyError):
        return torch.tensor(-1)


def hash_of_words(words: torch.Tensor) -> torch.Tensor:
    """Return the sum of all words, each multiplied by an odd factor of its position, modulo 2**64."""
    if (count := words.numel()) <= LIMIT:
        return multiplied(words).sum()
    rows = multiplied(words[: count // LIMIT * LIMIT].view(-1, LIMIT)).sum(1)
    rest = multiplied(words[count // LIMIT * LIMIT :]).sum(0, keepdim=True)
    return hash_of_words(torch.cat([rows, rest]))


def multiplied(words: torch.Tensor) -> torch.Tensor:
    """Return the words times the factors of their positions. Before, the upper half of each is mixed into the lower one: the
    highest bits of two words, such as two signs, would cancel out whatever the factors are.
    """
    if words.device not in FACTORS:
        places = torch.arange(1, LIMIT + 1, device=words.device) * 0x1E3779B97F4A7C15
        FACTORS[words.device] = (places ^ (places >> 29)) * 0x3F58476D1CE4E5B9 | 1
    return (words ^ (words >> 31)) * FACTORS[words.device][: words.shape[-1]]


def hash_of_text(text: str | bytes) -> int:
    """Return 60 bits."""
    raw = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") >> 4


def fingerprint(value: Any) -> int:
    """Return a hash of a value with all that is in it: tensors, arrays, numbers, texts, containers, attributes of objects."""
    return hash_of_text(json.dumps(named_hashes({"": value})))


def named_hashes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each value consists of, by its path: the hash of a tensor, anything else as text."""
    leaves = [leaf for name, value in values.items() for leaf in leaves_of(name, value)]
    numbers = iter(hashes_of(leaf for _, leaf in leaves if isinstance(leaf, torch.Tensor)))
    return {path: next(numbers) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in leaves}


def leaves_of(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a value, and everything else as text, each with its path. Functions are left out."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, np.ndarray):
        yield path, f"{value.dtype} {value.shape} {hash_of_text(value.tobytes())}"
    elif value is None or isinstance(value, str | bytes | bool | int | float | complex | np.generic):
        yield path, repr(value)
    elif isinstance(value, GENERATORS):
        yield path, str(hash_of_text(state_of_generator(value)))
    elif depth < DEEPEST and not callable(value):
        parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        named = sorted(((str(key), each) for key, each in parts.items()), key=lambda pair: pair[0])
        if isinstance(value, list | tuple):
            named = [(str(number), each) for number, each in enumerate(value)]
        for key, each in named:
            yield from leaves_of(f"{path}.{key}", each, depth + 1)


def state_of_generator(value: Any) -> bytes:
    """Return the state of a random generator."""
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    state = value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else value.bit_generator.state
    return json.dumps(state, default=lambda array: array.tolist()).encode()
