"""The objects that a user's loop consists of, whatever their kind: each has `state_dict` and `load_state_dict`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import laid_out
from slipway.train.user.found import GENERATORS
from slipway.train.user.generators import set_generator, state_of_generator
from slipway.train.user.names import state_of_model, without_wrappers, wrapped_state
from slipway.train.user.sharding import Layouts, require_known
from slipway.train.user.values import Packing, describe, unpack

Tensors = dict[str, dict[str, torch.Tensor]]  # by file and name
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # also that of a file
OF_SCRIPT = "run_tensors"  # among the objects of a snapshot: see ScriptTensors
TAKEN = {"ranks", "run", OF_SCRIPT}  # files of a snapshot that have another content
SHOWN = 3  # differences in a message


class Objects:
    """A user's objects by name; one name may have several, in a list, tuple or dictionary."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        """Raises ConfigurationError for what has no state."""
        self.named: dict[str, dict[str, Any]] = {}  # the parts of each, `""` where it is a single one
        for name, value in named.items():
            if value is None:
                continue
            require_name(name, self.named)
            self.named[name] = {part: without_wrappers(each) for part, each in parts_of(name, value)}
            for part, each in self.named[name].items():
                require_known(path(name, part), each)
                require_counted(path(name, part), each)
        self.layouts = Layouts()
        self.others: list[str] = []  # mappings in their states that come back as plain dictionaries

    @property
    def all(self) -> list[Any]:
        """All objects, as the script has them."""
        parts = [each for parts in self.named.values() for each in parts.values()]
        return [each.inner if isinstance(each, GeneratorState) else each for each in parts]

    def of_kind(self, kind: type) -> list[Any]:
        """Return the objects of a class."""
        return [*self.named_of_kind(kind).values()]

    def named_of_kind(self, kind: type) -> dict[str, Any]:
        """Return the objects of a class by how a user would write them."""
        return {
            path(name, part): each
            for name, parts in self.named.items()
            for part, each in parts.items()
            if isinstance(each, kind)
        }

    @property
    def kinds(self) -> dict[str, dict[str, str]]:
        """The class of each object that is no model, by its name and part."""
        return {
            name: {part: type(each).__name__ for part, each in parts.items() if not isinstance(each, nn.Module)}
            for name, parts in self.named.items()
        }

    def collect(self) -> tuple[Tensors, dict[str, Any], dict[str, Any]]:
        """Return all states as tensors by file and name, and as JSON, and what these tensors are parts of (see Layouts).

        Raises ConfigurationError for what is not allowed.
        """
        tensors: Tensors = {}
        packed: dict[str, Any] = {}
        sharded: dict[str, Any] = {}
        self.others = []
        for name, parts in self.named.items():
            found: dict[str, torch.Tensor] = {}
            packed[name] = {
                part: Packing(found, self.others).pack(state_of(each), f"{path(name, part)}.state_dict()", part)
                for part, each in parts.items()
            }
            if parts_of_others := self.layouts.take_parts(found, f"{name}.state_dict()"):
                sharded[file_of(name)] = parts_of_others
            tensors[file_of(name)] = found
        return tensors, packed, sharded

    def load(self, snapshot: Snapshot) -> None:
        """Restore all states. Raises ConfigurationError, before anything is changed, where a model or a name does not fit."""
        stored = {name: each for name, each in snapshot.state["objects"].items() if name != OF_SCRIPT}
        named = {name: each for name, each in self.named.items() if name != OF_SCRIPT}
        if {name: set(parts) for name, parts in stored.items()} != {name: set(parts) for name, parts in named.items()}:
            raise ConfigurationError(
                f"The snapshot at step {snapshot.step} contains {listing(stored)}, and slipway.resume was called with "
                f"{listing(named)}. Pass the same objects, or start another run: --run-dir PATH."
            )
        for name, kinds in snapshot.state.get("kinds", {}).items():
            for part, kind in kinds.items():
                if (own := self.kinds[name].get(part, kind)) != kind:
                    raise ConfigurationError(
                        f"{path(name, part)} is of the class {own}, and was of {kind} in the snapshot at step {snapshot.step}. "
                        "Build it as before, or start another run: --run-dir PATH."
                    )
        states: dict[tuple[str, str], Any] = {}
        for name, parts in snapshot.state["objects"].items():
            tensors = self._tensors_of(snapshot, name)
            if not any(isinstance(each, nn.Module | torch.optim.Optimizer) for each in self.named[name].values()):
                # An object may keep what it is given, and change it: the snapshot is needed again (see Repeated).
                tensors = {key: tensor.clone() for key, tensor in tensors.items()}
            states |= {(name, part): unpack(packed, tensors) for part, packed in parts.items()}
        for (name, part), state in states.items():
            if isinstance(model := self.named[name][part], nn.Module):
                require_fit(path(name, part), state_of(model), state, snapshot.step)
        for (name, part), state in states.items():
            load_state(path(name, part), self.named[name][part], state, snapshot.step)

    def _tensors_of(self, snapshot: Snapshot, name: str) -> Mapping[str, torch.Tensor]:
        file, sharded = file_of(name), snapshot.state.get("sharded", {})
        return self.layouts.join_parts(snapshot.tensors.get(file, {}), sharded.get(file, {}), name)

    def load_again(self, snapshot: Snapshot, values: Mapping[tuple[str, str], str]) -> None:
        """Restore some objects, by name and part: the snapshot's tensors with these `values` of what is no tensor, as JSON."""
        for (name, part), text in values.items():
            tensors = self._tensors_of(snapshot, name)
            try:
                state = unpack(json.loads(text), tensors)
            except KeyError:  # there are others than in the snapshot
                state = unpack(snapshot.state["objects"][name][part], tensors)
            load_state(path(name, part), self.named[name][part], state, snapshot.step)


def require_name(name: str, others: Collection[str]) -> None:
    """Raise ConfigurationError where an object cannot have this name beside the `others`."""
    if not NAME.fullmatch(name):
        why = "a name consists of letters from a to z, digits and _, and begins with a letter"
    elif name.lower() in TAKEN:
        why = f"snapshots have a file {name.lower()} of their own"
    elif same := next((other for other in others if other.lower() == name.lower()), ""):
        why = f"on some disks its file would be the one of {same}="
    else:
        return
    raise ConfigurationError(f"{name}= cannot be the name of an object of slipway.resume: {why}. Type another one.")


class GeneratorState:
    """A random generator of torch's, numpy's or Python's as an object with a state."""

    def __init__(self, inner: Any) -> None:
        """`inner` is the generator."""
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:
        """Return what tells which numbers come next."""
        return {"state": state_of_generator(self.inner)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have these numbers come next."""
        set_generator(self.inner, state["state"])


def require_counted(name: str, value: Any) -> None:
    """Raise ConfigurationError for an optimizer whose steps nobody can notice."""
    if isinstance(value, torch.optim.Optimizer) and not hasattr(value, "_optimizer_step_post_hooks"):
        kind = type(value).__name__
        raise ConfigurationError(
            f"{name}: the class {kind} never calls super().__init__(), so nobody can tell when it steps. In its __init__, call "
            "super().__init__(parameters, {}) first; an optimizer around another one passes inner.param_groups."
        )


def parts_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of what was passed under a name, each with its own; raises ConfigurationError for what has no state."""
    several: Mapping[str, Any] = {"": value}
    if isinstance(value, list | tuple) and not hasattr(value, "state_dict"):
        several = {str(number): each for number, each in enumerate(value)}
    elif isinstance(value, Mapping) and not hasattr(value, "state_dict"):
        alike = {type(key) for key in value} in (
            {str},
            {int},
        )  # else by position: keys may print alike, such as 1 and "1"
        several = {str(key) if alike else str(number): each for number, (key, each) in enumerate(value.items())}
    for part, one in several.items():
        each = GeneratorState(one) if isinstance(one, GENERATORS) else one
        if not callable(getattr(each, "state_dict", None)) or not callable(getattr(each, "load_state_dict", None)):
            raise ConfigurationError(
                f"{path(name, part)}: {describe(each)} has no state_dict() and load_state_dict(). Pass models, optimizers, "
                "schedulers and the like to slipway.resume, and keep plain values in run.state."
            )
        yield part, each


def state_of(value: Any) -> Any:
    """Return an object's state; that of a model does not tell what it was wrapped in."""
    return state_of_model(value) if isinstance(value, nn.Module) else value.state_dict()


def path(name: str, part: str) -> str:
    """Return how a user would write the object."""
    return f"{name}[{int(part) if part.isdigit() else part!r}]" if part else name


def file_of(name: str) -> str:
    """Return the name of an object's file in a snapshot, without its ending."""
    return name.replace("_", "-")


def listing(named: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the names of objects for a message."""
    return ", ".join(path(name, part) for name, parts in named.items() for part in parts) or "nothing"


def require_fit(name: str, own: Mapping[str, Any], stored: Mapping[str, Any], step: int) -> None:
    """Raise ConfigurationError, which names the first tensors that differ, where a state does not belong to a model."""
    own_shapes, stored_shapes = shapes(own), shapes(stored)
    differing = [
        key
        for key in (*own_shapes, *(stored_shapes.keys() - own_shapes))
        if own_shapes.get(key) != stored_shapes.get(key)
    ]
    if not differing:
        return
    shown = "; ".join(
        f"{key}: {stored_shapes.get(key, 'missing')} in the snapshot, {own_shapes.get(key, 'missing')} in the model"
        for key in differing[:SHOWN]
    )
    more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    raise ConfigurationError(
        f"{name} does not fit the snapshot at step {step}: {shown}{more}. Build the same model, or start another run: "
        "--run-dir PATH."
    )


def shapes(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the shapes of a model's tensors by name, and their types where these are not float32."""
    return {
        name: (" × ".join(map(str, value.shape)) or "a single value")
        + ("" if value.dtype == torch.float32 else f" of {str(value.dtype).removeprefix('torch.')}")
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def load_state(name: str, target: Any, state: Any, step: int) -> None:
    """Load a state into an object. Raises ConfigurationError for what the object does not take."""
    if isinstance(target, nn.Module):
        state = wrapped_state(target, state)
    if isinstance(target, torch.optim.Optimizer):
        state = {**state, "state": lay_out(target, state["state"])}
        if step:  # else a scheduler that steps first, at the end of an epoch, warns that no optimizer ever did
            target._opt_called = True  # type: ignore[attr-defined]
    try:
        target.load_state_dict(state)
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise ConfigurationError(
            f"{name} cannot load its state from the snapshot at step {step}: {type(error).__name__}: {error}. Build it as "
            "before, or start another run: --run-dir PATH."
        ) from error


def lay_out(optimizer: torch.optim.Optimizer, state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return an optimizer's state with each tensor in its parameter's order in memory, by which fused optimizers go."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        number: {key: laid_out(value, parameters[number]) for key, value in entries.items()}
        if isinstance(number, int) and number < len(parameters) and isinstance(entries, Mapping)
        else entries
        for number, entries in state.items()
    }
