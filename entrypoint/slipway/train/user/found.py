"""The objects of a script that change while it trains, wherever they are, and how the script calls them.

Objects are found by their type among all that live in the process; random generators, which the collector does not know, by a
walk over the variables. The walk also tells the names. Everything but generators is held by weak references.
"""

from __future__ import annotations

import dis
import gc
import inspect
import os
import random
import sys
import sysconfig
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import compress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CLEARED = sys.version_info < (3, 13)  # where a frame keeps what was read of it
WIDEST = 100  # parts of a container that are looked at
MOST = 20_000  # objects that are looked at
LEAVES = (str, bytes, int, float, complex, type(None), type, ModuleType, torch.Tensor, np.ndarray, Path)
METRIC = {
    "compute",
    "reset",
}  # methods of metrics, in torchmetrics and elsewhere; they begin again with each evaluation
LIBRARY = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
# The folders that packages are installed to: those of an environment, of the one that it builds on, of the user, of Debian.
INSTALLED = {"site-packages", "dist-packages"}


class FoundObject(NamedTuple):
    """An object: what the script calls it (empty if nothing does), `train.py:31` (or empty), its class, and a call that
    returns it, None if it is gone."""

    name: str
    where: str
    kind: str
    ref: Callable[[], Any]

    def __str__(self) -> str:
        """How messages name it."""
        named = f'{self.kind} "{self.name}"' if self.name else self.kind
        return f"{named} ({self.where})" if self.where else named


def found_objects(passed: Iterable[object] = ()) -> tuple[FoundObject, ...]:
    """Return the objects that have a state and are not `passed`, those with names first, and what has others before these.

    These are optimizers, schedulers, gradient scalers, random generators, what has `state_dict` and `load_state_dict` of its own,
    and modules with parameters or buffers that no passed one has, each without the modules within it.
    """
    places = places_of_variables()
    known = {id(each) for each in (*passed, *global_generators())}
    named = [place.value for place in places.values() if has_state(type(place.value))]  # which gc.freeze may hide
    live = [
        each
        for each in {id(each): each for each in (*live_objects(has_state), *named)}.values()
        if id(each) not in known
    ]
    modules = outermost([each for each in live if issubclass(type(each), nn.Module)], tensors_of(passed))
    others = [each for each in live if not issubclass(type(each), nn.Module)]
    generators = [place.value for place in places.values() if issubclass(type(place.value), GENERATORS)]
    found = [found_at(each, places.get(id(each))) for each in (*others, *modules, *generators) if id(each) not in known]
    return tuple(sorted(found, key=lambda each: (not each.name, each.name.count("."))))


def global_generators() -> tuple[Any, ...]:
    """Return the generators that each process has; `from random import shuffle` leads to one."""
    inside: Any = random.random
    return inside.__self__, np.random.mtrand._rand, torch.default_generator, *torch.cuda.default_generators


def live_objects(wanted: Callable[[type], bool]) -> list[Any]:
    """Return the objects of this process whose class is `wanted`."""
    live = gc.get_objects()  # several hundred thousand
    kinds = {kind for kind in {*map(type, live)} if wanted(kind)}
    return [*compress(live, map(kinds.__contains__, map(type, live)))]


def has_state(kind: type) -> bool:
    """Whether objects of a class have a state that may have to be saved; those that read data have it elsewhere."""
    if {*dir(kind)} >= METRIC:
        return False
    return issubclass(kind, torch.optim.Optimizer | LRScheduler | nn.Module) or (
        all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))
        and not hasattr(kind, "__iter__")
        and not issubclass(kind, type)
        and kind.__module__.partition(".")[0] != "slipway"
    )


def outermost(modules: Collection[nn.Module], known: set[int]) -> list[nn.Module]:
    """Return the modules with tensors that are not `known`, without those within one of which nothing is known."""
    own = {id(each): tensors_of([each]) for each in modules}
    new = [each for each in modules if own[id(each)] - known]
    whole = [each for each in new if not own[id(each)] & known]
    inner = {id(part) for each in whole for part in each.modules() if part is not each}
    whole = [each for each in whole if id(each) not in inner]
    mixed = [each for each in new if own[id(each)] & known and own_tensors(each) - known]
    return [*without_copies(whole, own), *mixed]


def without_copies(modules: Iterable[nn.Module], own: Mapping[int, set[int]]) -> Iterator[nn.Module]:
    """Yield the first of those that have the same tensors, such as a model and its DistributedDataParallel."""
    seen: set[frozenset[int]] = set()
    for each in modules:
        if (tensors := frozenset(own[id(each)])) not in seen:
            seen.add(tensors)
            yield each


def tensors_of(objects: Iterable[object]) -> set[int]:
    """Return the identities of all parameters and buffers of those that are modules."""
    modules = [each for each in objects if isinstance(each, nn.Module)]
    return {id(tensor) for each in modules for tensor in (*each.parameters(), *each.buffers())}


def own_tensors(module: nn.Module) -> set[int]:
    """The same of one module, without those of the modules within it."""
    return {id(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))}


# Names


class Variable(NamedTuple):
    """A value, what the script calls it, and a call that tells where that was assigned."""

    value: Any
    name: str
    where: Callable[[], str]


def found_at(value: Any, place: Variable | None) -> FoundObject:
    """Return what was found, with its name."""
    try:
        ref: Callable[[], Any] = weakref.ref(value)
    except TypeError:  # torch's generators
        ref = partial(_itself, value)
    return FoundObject(place.name if place else "", place.where() if place else "", type(value).__name__, ref)


def _itself(value: Any) -> Any:
    return value


def places_of_variables() -> dict[int, Variable]:
    """Return what the script's variables lead to, by identity: nearest first, in running functions and modules of the user's."""
    return walk(roots_of_script())


def roots_of_script() -> list[Variable]:
    """Return the variables of running functions, nearest first, and of modules of the user's."""
    roots: list[Variable] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_globals):
            code, line = frame.f_code, frame.f_lineno
            variables = variables_of(frame)
            roots += [Variable(value, name, partial(line_of, code, name, line)) for name, value in variables.items()]
        frame = frame.f_back
    for module in [*sys.modules.values()]:
        if is_users(names := getattr(module, "__dict__", {})) and names.get("__file__"):
            file = Path(names["__file__"]).name
            prefix = "" if names["__name__"] == "__main__" else f"{names['__name__']}."
            roots += [Variable(value, f"{prefix}{name}", partial(_itself, file)) for name, value in [*names.items()]]
    return roots


def walk(roots: Iterable[Variable]) -> dict[int, Variable]:
    """Return what the roots lead to, themselves included, by identity. They keep all of it alive."""
    found: dict[int, Variable] = {}
    waiting = deque(roots)
    while waiting and len(found) < MOST:
        place = waiting.popleft()
        if id(place.value) not in found and not issubclass(type(place.value), (*LEAVES, *GENERATORS)):
            found[id(place.value)] = place
            waiting += parts_of(place)
        elif issubclass(type(place.value), GENERATORS):
            found.setdefault(id(place.value), place)
    return found


def parts_of(place: Variable) -> Iterator[Variable]:
    """Yield what a value consists of: elements, attributes, variables of a function's surroundings."""
    value, name, where = place
    kind = type(value)
    if issubclass(kind, dict):
        keys = [key for key in [*value][:WIDEST] if type(key) in (str, int)]
        yield from (Variable(value[key], f"{name}[{key!r}]", where) for key in keys)
    elif issubclass(kind, list | tuple | deque):
        yield from (Variable(each, f"{name}[{number}]", where) for number, each in enumerate([*value][:WIDEST]))
    elif issubclass(kind, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != type(cell)():
                yield Variable(cell.cell_contents, variable, where)
    elif issubclass(kind, MethodType):
        yield Variable(value.__self__, name, where)
    elif issubclass(kind, partial):
        yield Variable((value.func, value.args, value.keywords), name, where)
    elif kind.__module__.partition(".")[0] == "slipway":
        if hasattr(value, "inner"):  # a sampler or data set in ours
            yield Variable(value.inner, name, where)
    elif not issubclass(kind, BuiltinFunctionType):
        attributes = own_attributes(value)
        attributes |= attributes.pop("_modules", {}) if issubclass(kind, nn.Module) else {}
        for key, each in attributes.items():
            if not issubclass(type(each), LEAVES):
                yield Variable(each, f"{name}.{key}", partial(line_in_class, kind, key, where))


def own_attributes(value: Any) -> dict[str, Any]:
    """Return a copy of an object's attributes, without a call of what its class may do when somebody asks for one."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


def is_users(names: Mapping[str, Any]) -> bool:
    """Whether the globals are those of a module that is neither installed nor ours."""
    file = str(names.get("__file__") or "")
    inside = str(names.get("__name__", "")).partition(".")[0]
    installed = inside in ("slipway", "torch") or file.startswith(LIBRARY)  # torch may be a checkout
    return not installed and INSTALLED.isdisjoint(Path(file).parts)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a function's variables. Python 3.11 and 3.12 keep in the frame what is read, alive; so that is emptied."""
    kept = frame.f_locals
    copy = dict(kept)
    alone = sys.getrefcount(kept) <= 3  # the frame, `kept`, the call: else the script has called locals()
    if CLEARED and alone and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        kept.clear()
    return copy


def line_of(code: CodeType, name: str, before: float = float("inf")) -> str:
    """Return `file:line` where code last assigns to a name at or before a line, or else first; empty if it does not."""
    lines = [
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.opname.startswith("STORE_")
        and (each.argval == name or (isinstance(each.argval, tuple) and name in each.argval))
        and each.positions
        and each.positions.lineno
    ]
    line = max((each for each in lines if each <= before), default=min(lines, default=0))
    return f"{Path(code.co_filename).name}:{line}" if line else ""


def line_in_class(kind: type, name: str, otherwise: Callable[[], str]) -> str:
    """Return where a user's class assigns to an attribute, or else what `otherwise` returns."""
    for each in kind.__mro__:
        if is_users(vars(sys.modules.get(each.__module__, sys))):
            for method in vars(each).values():
                if isinstance(method, FunctionType) and (where := line_of(method.__code__, name)):
                    return where
    return otherwise()
