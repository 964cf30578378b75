"""Names within a model as they are without DistributedDataParallel and torch.compile, so that these may come and go.

Both put their model into a module of its own: `0.weight` becomes `module.0.weight` or `_orig_mod.0.weight`, at whichever level
they are used: an average of a model in DistributedDataParallel has `module.module.0.weight`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Classes of accelerate and Lightning Fabric, and where each has what it wraps.
WRAPPERS = {"AcceleratedOptimizer": "optimizer", "_FabricOptimizer": "optimizer", "_FabricModule": "module"}
COMPILED = "_orig_mod"


def inside_of(module: Any) -> str:
    """Return the name under which DistributedDataParallel or torch.compile has its model, empty for any other module."""
    if isinstance(module, DistributedDataParallel | nn.DataParallel):
        return "module"
    return COMPILED if COMPILED in getattr(module, "_modules", ()) else ""


def without_wrappers(value: Any) -> Any:
    """Return what is inside the wrappers of frameworks, DDP and torch.compile."""
    while inside := next((WRAPPERS[each.__name__] for each in type(value).__mro__ if each.__name__ in WRAPPERS), ""):
        value = getattr(value, inside)
    while isinstance(value, nn.Module) and (inside := inside_of(value)):
        value = value._modules[inside]
    return value


class PlainNames:
    """Takes the wrappers out of names of a model's tensors and modules."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        """`names` of its tensors; most models have no wrapper in them, and need no search."""
        wrapped = any("module." in name or f"{COMPILED}." in name for name in names)
        found = model.named_modules(remove_duplicate=False) if wrapped else ()
        # From the inside out, so that those outside are still in front of a name that has lost one.
        self._pairs = [(f"{name}.", f"{name}.{inside}.") for name, module in found if (inside := inside_of(module))][
            ::-1
        ]

    def tensor(self, name: str) -> str:
        """Return the name of a tensor without wrappers."""
        for plain, wrapped in self._pairs:
            if name.startswith(wrapped):
                name = plain + name.removeprefix(wrapped)
        return name

    def module(self, name: str) -> str:
        """Return the name of a module without wrappers."""
        return self.tensor(f"{name}.").removesuffix(".")


def state_of_model(model: nn.Module) -> Any:
    """Return a model's state with plain names, and the metadata of its modules: which version each has, for one."""
    own = model.state_dict()
    names = PlainNames(model, own)
    state: Any = OrderedDict((names.tensor(name), value) for name, value in own.items())
    if (
        metadata := getattr(own, "_metadata", None)
    ) is not None:  # of a wrapper and what it wraps the latter's, which is second
        state._metadata = OrderedDict((names.module(name), each) for name, each in metadata.items())
    return state


def wrapped_state(model: nn.Module, state: Mapping[str, Any]) -> Any:
    """Undo `state_of_model` for this model; a module of which the state has no metadata has its own."""
    own = model.state_dict()
    names = PlainNames(model, own)
    wrapped = {names.tensor(name): name for name in own}
    given: Any = OrderedDict((wrapped.get(name, name), value) for name, value in state.items())
    if (metadata := getattr(own, "_metadata", None)) is not None:
        stored = getattr(state, "_metadata", {})
        given._metadata = OrderedDict((name, stored.get(names.module(name), each)) for name, each in metadata.items())
    return given
