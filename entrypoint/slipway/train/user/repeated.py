"""What a script does a second time if it resumes within an epoch: the code before that epoch's data, or what follows them."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.tensors import raw_bytes
from slipway.train.user.module_attributes import ModuleAttributes
from slipway.train.user.objects import GeneratorState, Objects, path, state_of
from slipway.train.user.saved_states import bits_of
from slipway.train.user.sharding import local
from slipway.train.user.values import Packing, from_bytes, put_back, to_bytes

SHORT = 2**16  # bytes of a tensor that is compared bit by bit, and of what is saved for each rank
LEAST, SHARE = 0.5, 0.01  # seconds, and the part of the time, that looking at all states may take
Marks = Mapping[tuple[str, str], tuple[str, Hashable]]  # see marks
Encoded = dict[str, torch.Tensor]  # entries of run.state as bytes


@dataclass(frozen=True)
class Rest:
    """The states where a stop before the next step resumes, after so many `steps`."""

    steps: int
    objects: Marks
    state: torch.Tensor  # run.state as bytes


class Repeated:
    """Undoes what that code changes of the passed objects and of `run.state`, since the snapshot has it already.

    It may halve a learning rate, step a scheduler, count, or copy the weights into another network. What the script sets between
    `slipway.resume` and its loop stays, such as another learning rate.
    """

    def __init__(self, objects: Objects, attributes: ModuleAttributes) -> None:
        """Nothing is repeated in a run that begins, or that resumes between two epochs."""
        self._objects, self._attributes = objects, attributes
        self._snapshot: Snapshot | None = None  # within an epoch, until its data are read
        self._before: Marks = {}
        self._state: dict[str, Any] = {}
        self._changed: dict[str, Any] = {}  # attributes of modules
        self._start: Encoded | None = None  # run.state as the epoch began, until its data are read
        self.replaced: dict[
            str, torch.Tensor | None
        ] = {}  # entries that it had changed by then: as they were, None for new ones
        self._rest: Rest | None = None
        self._unseen: int | None = None  # the number of steps there if nothing was looked at, to save time
        self._begun, self._spent = time.perf_counter(), 0.0

    def hold(self, snapshot: Snapshot, replaced: dict[str, torch.Tensor | None]) -> None:
        """Note that the run resumes within an epoch, from this snapshot, which has what was `replaced`."""
        self._snapshot, self.replaced = snapshot, replaced

    def begin(self, state: dict[str, Any]) -> None:
        """Note the states where that epoch begins again. `state` is `run.state`, which then is as it was there."""
        if self._snapshot is None:
            self._start, self.replaced = encode(state), {}
        elif not self._before:
            self._before, self._state = marks(self._objects), copy.deepcopy(state)
            self._changed = self._attributes.changed()
            for key, value in self.replaced.items():
                now = state.pop(key, None)
                if value is not None:
                    state[key] = put_back(now, from_bytes(value)["it"])

    def undo(self, state: dict[str, Any]) -> None:
        """Where the data of the epoch go on: restore what has changed since then."""
        if self._snapshot is not None and self._before:
            now = marks(self._objects)
            changed = {key: before[0] for key, before in self._before.items() if now.get(key) != before}
            self._objects.load_again(self._snapshot, changed)
            self._attributes.load(self._changed)
            put_back(state, self._state)
        elif self._start is not None:
            start, found = self._start, encode(state)
            replaced = {key: start.get(key) for key in {**start, **found} if not equal(start, found, key)}
            self.replaced = {key: value for key, value in replaced.items() if value is None or len(value) <= SHORT}
        self._start = None
        self.drop()

    def drop(self) -> None:
        """Let go of the snapshot."""
        self._snapshot, self._before, self._state = None, {}, {}

    def rest(self, state: dict[str, Any], steps: int) -> None:
        """Note the states at a place where a stop before the next step resumes: an epoch begins, or its data are at their end."""
        now = time.perf_counter()
        self.go_on()
        if self._spent > LEAST + SHARE * (now - self._begun):
            self._unseen = steps
            return
        with suppress(ConfigurationError):  # the next boundary refuses it
            self._rest = Rest(steps, marks(self._objects), to_bytes({"it": state}, "run.state"))
        self._spent += time.perf_counter() - now

    def go_on(self) -> None:
        """Note that no stop resumes there any more."""
        self._rest = self._unseen = None

    def since_rest(self, steps: int) -> tuple[dict[tuple[str, str], str], dict[str, Any] | None, list[str]]:
        """Return what the script would do twice if it stopped now: the objects that have changed, with what was no tensor then,
        as JSON; `run.state` as it was; and the names of the objects that have other tensors now, which nobody could put back.
        Random generators draw again what they drew (see Position).
        """
        if self._unseen == steps:
            return {}, None, ["a passed object, perhaps"]
        if self._rest is None or self._rest.steps != steps:
            return {}, None, []
        now = marks(self._objects)
        changed = {
            (name, part): before
            for (name, part), before in self._rest.objects.items()
            if now[name, part] != before and not isinstance(self._objects.named[name][part], GeneratorState)
        }
        tensors = [path(*key) for key, before in changed.items() if now[key][1] != before[1]]
        return {key: before[0] for key, before in changed.items()}, from_bytes(self._rest.state)["it"], tensors


def encode(state: dict[str, Any]) -> Encoded:
    """Return the entries of `run.state` as they are now. Raises ConfigurationError for what cannot be saved."""
    return {key: to_bytes({"it": value}, f"run.state[{key!r}]") for key, value in state.items()}


def equal(one: Encoded, other: Encoded, key: str) -> bool:
    """Whether both have the same entry."""
    return key in one and key in other and torch.equal(one[key], other[key])


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
