"""What differs from rank to rank although a snapshot has it once: `run.state`, buffers, small states of objects.

Each rank hashes its own. What is not the same on all ranks is stored for each of them as well, and each gets its own back.
Parameters and what an optimizer keeps for each of them are not compared, nor are tensors that are large.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.tensors import raw_bytes
from slipway.train.user.objects import OF_SCRIPT, Objects, Tensors, file_of
from slipway.train.worker.context import Context

COMPARED = 2**24  # bytes of an object's tensors, the smallest first: to hash them takes 16 ms
RUN = "run"  # the file of what run.state holds
TEXT = ""  # in the place of a tensor's name: what is no tensor
SHOWN = 3  # names in a line
Pieces = dict[tuple[str, str], torch.Tensor]  # by file and name; a text as its bytes
Own = dict[str, dict[str, torch.Tensor]]  # the pieces of a rank that differ


@dataclass(frozen=True)
class Collected:
    """What a snapshot holds: tensors by file and name, JSON by object, which tensors are parts of others, run.state as JSON."""

    tensors: Tensors
    packed: Mapping[str, Any]
    sharded: Mapping[str, Any]
    values: Any


def own_pieces(context: Context, objects: Objects, collected: Collected, size: int) -> tuple[Own, int]:
    """Return what this rank has otherwise than another one, by all ranks: nothing on all of them if they are alike. Then the
    largest `size` of all ranks comes with it, else 0: one exchange is enough as long as nothing differs.
    """
    if context.side is None:
        return {}, size
    pieces = dict(compared(objects, collected))
    hashes = torch.tensor(hash_all(pieces))
    whole = torch.tensor([size, len(hashes), *hash_all({(RUN, TEXT): hashes})])
    rows = torch.stack(context.gather(whole))
    if bool((rows[:, 1:] == rows[0, 1:]).all()):
        return {}, int(rows[:, 0].max())
    padded = torch.nn.functional.pad(hashes, (0, int(rows[:, 1].max()) - len(hashes)))
    table = torch.stack(context.gather(padded))
    own: Own = {}
    for ((file, name), piece), same in zip(pieces.items(), (table == table[0]).all(0).tolist(), strict=False):
        if not same:
            own.setdefault(file, {})[name] = piece
    return own, 0


def compared(objects: Objects, collected: Collected) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
    """Yield what should be the same on all ranks, or is kept for each."""
    parameters = {each.data_ptr() for model in objects.of_kind(nn.Module) for each in model.parameters()}
    yield (RUN, TEXT), text_of(collected.values)
    yield from (((RUN, name), tensor) for name, tensor in collected.tensors[RUN].items())
    for object_name, packed in collected.packed.items():
        file = file_of(object_name)
        yield (file, TEXT), text_of(packed)
        if any(isinstance(each, torch.optim.Optimizer) for each in objects.named[object_name].values()):
            continue
        parts = collected.sharded.get(file, {})
        found = {
            name: tensor
            for name, tensor in collected.tensors[file].items()
            if name not in parts and tensor.data_ptr() not in parameters
        }
        yield from (((file, name), found[name]) for name in small_ones(found))


def small_ones(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the smallest tensors, as many as have COMPARED bytes together, in their own order."""
    ordered = sorted(tensors, key=lambda name: tensors[name].nbytes)
    sums = accumulate(tensors[name].nbytes for name in ordered)
    small = {name for name, total in zip(ordered, sums, strict=True) if total <= COMPARED}
    return [name for name in tensors if name in small]


def text_of(packed: Any) -> torch.Tensor:
    """Return JSON as the bytes of a text."""
    return torch.frombuffer(bytearray(json.dumps(packed).encode()), dtype=torch.uint8)


def hash_all(pieces: Pieces) -> list[int]:
    """Return a hash of each piece with its name, type and shape, in 7 bytes."""
    hashes = []
    for (key, piece), raw in zip(pieces.items(), on_host(pieces.values()), strict=True):
        found = hashlib.blake2b(repr((key, piece.dtype, piece.shape)).encode(), digest_size=7)
        found.update(raw.numpy().data)
        hashes.append(int.from_bytes(found.digest(), "little"))
    return hashes


def on_host(tensors: Iterable[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the bytes of tensors in CPU memory. Those on a device are copied together, so it is waited for once."""
    raws = [raw_bytes(tensor) for tensor in tensors]
    away = [number for number, raw in enumerate(raws) if not raw.is_cpu]
    if away:
        sizes = [raws[number].numel() for number in away]
        copied = torch.cat([raws[number] for number in away]).cpu()
        for number, raw in zip(away, torch.split(copied, sizes), strict=True):
            raws[number] = raw
    return raws


def with_own(snapshot: Snapshot, own: Own) -> Snapshot:
    """Return a snapshot with the pieces of a rank in their places."""
    tensors = {file: dict(named) for file, named in snapshot.tensors.items()}
    texts = {file: json.loads(bytes(named[TEXT].numpy())) for file, named in own.items() if TEXT in named}
    for file, named in own.items():
        tensors.setdefault(file, {}).update((name, piece) for name, piece in named.items() if name != TEXT)
    state = dict(snapshot.state)
    state["values"] = texts.get(RUN, state["values"])
    state["objects"] = {name: texts.get(file_of(name), packed) for name, packed in state["objects"].items()}
    return replace(snapshot, state=state, tensors=tensors)


def names_of(own: Own) -> str:
    """Return the names of what differed, for a message."""
    names = [shown(file, name) for file, named in own.items() for name in named]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def shown(file: str, name: str) -> str:
    """Return how a message calls a piece."""
    if file == file_of(OF_SCRIPT):
        return name.removeprefix("values.") or "tensors in the script's variables"
    return "run.state" if file == RUN else f"{file}.{name}".removesuffix(".")
