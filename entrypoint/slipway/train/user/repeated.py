"""What a script does a second time if it resumes within an epoch: the code before the data of that epoch runs again."""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.tensors import raw_bytes
from slipway.train.user.module_attributes import ModuleAttributes
from slipway.train.user.objects import Objects, path, state_of
from slipway.train.user.saved_states import bits_of
from slipway.train.user.sharding import local
from slipway.train.user.values import Packing

SHORT = 2**16  # bytes of a tensor that is compared bit by bit


class Repeated:
    """Undoes what that code changes of the passed objects and of `run.state`, since the snapshot has it already.

    It may halve a learning rate, step a scheduler, count, or copy the weights into another network. What the script sets between
    `slipway.resume` and its loop stays, such as another learning rate.
    """

    def __init__(self, objects: Objects, attributes: ModuleAttributes) -> None:
        """Nothing is repeated in a run that begins, or that resumes between two epochs."""
        self._objects, self._attributes = objects, attributes
        self._snapshot: Snapshot | None = None  # within an epoch, until its data are read
        self._before: dict[tuple[str, str], tuple[str, Hashable]] = {}  # see marks
        self._state: dict[str, Any] = {}
        self._changed: dict[str, Any] = {}  # attributes of modules

    def hold(self, snapshot: Snapshot) -> None:
        """Note that the run resumes within an epoch, from this snapshot."""
        self._snapshot = snapshot

    def begin(self, state: dict[str, Any]) -> None:
        """Note the states where that epoch begins again. `state` is `run.state`."""
        if self._snapshot is not None and not self._before:
            self._before, self._state = marks(self._objects), copy.deepcopy(state)
            self._changed = self._attributes.changed()

    def undo(self, state: dict[str, Any]) -> None:
        """Where the data of the epoch go on: restore what has changed since then."""
        if self._snapshot is not None and self._before:
            now = marks(self._objects)
            changed = {key: before[0] for key, before in self._before.items() if now.get(key) != before}
            self._objects.load_again(self._snapshot, changed)
            self._attributes.load(self._changed)
            put_back(state, self._state)
        self.drop()

    def drop(self) -> None:
        """Let go of the snapshot."""
        self._snapshot, self._before, self._state = None, {}, {}


def marks(objects: Objects) -> dict[tuple[str, str], tuple[str, Hashable]]:
    """Return by name and part what is no tensor in the state of an object, as JSON, and what tells its tensors from others."""
    found: dict[tuple[str, str], tuple[str, Hashable]] = {}
    for name, parts in objects.named.items():
        for part, each in parts.items():
            tensors: dict[str, torch.Tensor] = {}
            packed = Packing(tensors, []).pack(state_of(each), f"{path(name, part)}.state_dict()", part)
            found[name, part] = json.dumps(packed), tuple((key, mark_of(each)) for key, each in tensors.items())
    return found


def mark_of(tensor: torch.Tensor) -> Hashable:
    """Return what differs once a tensor is another one. The sum of the bits of a short one is that of all its permutations."""
    part = local(tensor)
    return raw_bytes(part.contiguous()).cpu().numpy().tobytes() if part.nbytes <= SHORT else bits_of(tensor)


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
    elif isinstance(now, np.ndarray | torch.Tensor) and (now.shape, now.dtype) == (before.shape, before.dtype):
        now[...] = before
    else:
        return before
    return now
