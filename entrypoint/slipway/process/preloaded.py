"""Modules that were imported before a program's first line, and are hidden from it until it imports them itself.

Before and after its `import torch`, a program sees what it would see if torch had to be loaded at that moment: the same entries
of sys.modules in the same order, and the same filters of warnings, variables, loggers and functions that run at its exit. The
modules are imported in the order of the script's first attempt, one after the other. Each forms a group with the modules that its
import brings along. A group that depends on another one comes after it, so a group is shown together with all groups before it.
"""

import atexit
import os
import sys

from slipway.process.imports import (
    DYNAMO,
    HEAVY,
    LIGHT,
    TORCH,
    ProgramState,
    bootstrap,
    disguise,
    filters,
    is_read,
    is_standard,
    origin,
)

TYPE_CHECKING = False  # what is imported here would not come in the program's order
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

MISSING = object()
FUNCTIONS = (type(len), type(disguise), type)
VISIBLE = "CUDA_VISIBLE_DEVICES"  # each worker may have its own; CUDA reads it when it is first used
ALONE = ("this", "antigravity")  # they are imported for what they do then


class ImportGroup:
    """A module, and what its import brought along."""

    def __init__(self, name: str, *, aside: bool) -> None:
        self.name, self.aside = name, aside
        self.modules: dict[str, ModuleType] = {}
        self.changes: list[tuple[ModuleType, str, Any, Any]] = []  # of a module's attribute: from, to
        self.filters: list[Any] = []  # of warnings
        self.environ: dict[str, str] = {}
        self.brought: dict[str, str] = {}  # of `environ`, once it is there
        self.loggers: dict[str, Any] = {}
        self.exits: list[tuple[Any, ...]] = []  # what atexit.register was called with


class Reads(dict):  # type: ignore[type-arg]
    """Variables, which remembers which of them were asked for."""

    def __init__(self, values: "dict[bytes, bytes]") -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: bytes) -> bytes:
        """The value; the name is noted."""
        self.names.add(os.fsdecode(name))
        return super().__getitem__(name)  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        """Whether it is there; the name is noted."""
        self.names.add(os.fsdecode(name) if isinstance(name, bytes) else "")
        return super().__contains__(name)


class Preloaded:
    """The groups. `order`: the names and files of the modules that the first attempt had when it had imported torch, `early` of
    them before that.
    """

    def __init__(self, order: "Sequence[tuple[str, str]]", early: int) -> None:
        self._early = [name for name, _ in order[:early]]
        self._order = {name: place for place, (name, _) in enumerate(order)}
        self._files = dict(order)
        self._groups: list[ImportGroup] = []
        self._hidden: dict[str, int] = {}  # names to their groups
        self._shown: dict[str, ModuleType] = {}
        self._functions: dict[str, dict[str, Any]] = {}
        self._reads = set[str]()
        self._environ = dict(os.environ)
        self._real = bootstrap._find_and_load

    def load_all(self) -> str:
        """Import torch, and before it what the script did of its parts and of Python's standard library; empty, or why that is of
        no use.
        """
        before = ProgramState()
        for name in self._early:
            wanted = is_standard(name) or name.partition(".")[0] in {*LIGHT, "numpy"}
            if wanted and name not in sys.modules and name not in ALONE:
                self.load(name)
        self.load(TORCH)
        for group in self._groups:
            for name, module in group.modules.items():
                if self._files.get(name) != origin(module) and name != "__mp_main__":  # the script itself
                    return f"{name} comes from {self._files.get(name) or 'elsewhere'}"
        for group in self._groups:
            before.environ |= group.environ
            before.filters = [*group.filters, *before.filters]
        before.loggers = frozenset(loggers())
        return before.change()

    def load(self, name: str, *, aside: bool = False) -> None:
        """Import a module, and note what that brings along. `aside`: what comes after it does without it."""
        attributes = {
            one: dict(vars(module)) for one, module in sys.modules.items() if one != "sys" and is_module(module)
        }
        modules, filtered, environ, logged = set(sys.modules), [*filters()], dict(os.environ), set(loggers())
        group, register = ImportGroup(name, aside=aside), atexit.register
        plain = os.environ._data  # type: ignore[attr-defined]
        os.environ._data = reads = Reads(plain)  # type: ignore[attr-defined]

        def note_exit(*words: "Any", **named: "Any") -> "Any":
            group.exits.append((*words, named))
            return words[0]

        atexit.register = note_exit
        try:
            __import__(name)
        finally:
            atexit.register = register
            os.environ._data = plain  # type: ignore[attr-defined]
            plain.update(reads)
        self._reads |= reads.names - set(environ)
        group.modules = {one: module for one, module in sys.modules.items() if one not in modules}
        group.filters = [one for one in filters() if one not in filtered]
        group.environ = {one: value for one, value in os.environ.items() if environ.get(one) != value}
        group.loggers = {one: logger for one, logger in loggers().items() if one not in logged}
        new = {id(module) for module in group.modules.values()}
        for one, before in attributes.items():
            group.changes += changes(one, before, new)
        self._groups.append(group)

    def hide(self) -> None:
        """Make the process look as if nothing had been imported; `show` is how a program gets at it."""
        for name in ("preloaded", "script_standby"):
            put(sys.modules["slipway.process"], name, MISSING)
            sys.modules.pop(f"slipway.process.{name}", None)
        known = {one: module for one, module in sys.modules.items() if is_module(module) and is_standard(one)}
        for place, group in reversed([*enumerate(self._groups)]):
            for module, attribute, old, _ in reversed(group.changes):
                put(module, attribute, old)
            for name in group.modules:
                self._hidden[name] = place
                sys.modules.pop(name, None)
            for name in group.environ:
                os.environ.pop(name, None)
            filters()[:] = [one for one in filters() if one not in group.filters]
            for name in group.loggers:
                loggers().pop(name, None)
            for function, *_ in group.exits:
                if is_finalizer(function):
                    function.__self__._registered_with_atexit = False
        self._functions = {one: functions(module) for one, module in known.items()}

    def misses(self) -> str:
        """A variable that counts, and has another value than when all was imported; empty: none."""
        before, now = self._environ, dict(os.environ)
        names = [name for name in sorted(before.keys() | now.keys()) if self._counts(name) and name != VISIBLE]
        return next((name for name in names if before.get(name) != now.get(name)), "")

    def offer(self, start_over: "Callable[[str], None]") -> None:
        """Let the program have them from here on. `start_over` is called with the reason where the program changed something that
        counts; it does not return as long as the program can begin again.
        """
        self._start_over, self._before, hidden = start_over, ProgramState(), self._hidden
        real, show = self._real, self._show

        def _find_and_load(name: str, import_: "Any") -> "Any":
            if name in hidden:
                show(name)
            return sys.modules[name] if name in sys.modules else real(name, import_)

        bootstrap._find_and_load = disguise(_find_and_load)

    def _show(self, name: str) -> None:
        """Show a module: one of torch's with all groups before, another with those parts of them that are not torch's."""
        place, heavy = self._hidden[name], name.partition(".")[0] in HEAVY
        groups = [group for at, group in enumerate(self._groups[: place + 1]) if at == place or not group.aside]
        if why := self._change(name, heavy, groups):
            self._start_over(f"{why} before {name} was imported")
        shown = [
            (one, module)
            for group in groups
            for one, module in group.modules.items()
            if one in self._hidden and (heavy or one.partition(".")[0] not in HEAVY)
        ]
        for one, module in sorted(shown, key=lambda pair: self._order.get(pair[0], len(self._order))):
            del self._hidden[one]
            self._shown[one] = sys.modules[one] = module
        for group in groups:
            self._apply(group, whole=not any(one in self._hidden for one in group.modules))
        if heavy:
            self._before.filters, self._before.loggers = [*filters()], frozenset(loggers())
            for group in groups:
                self._before.environ |= group.brought

    def _apply(self, group: ImportGroup, *, whole: bool) -> None:
        """Redo what a group's import did, as far as its modules are shown."""
        shown = {id(module) for module in self._shown.values()}
        for change in [*group.changes]:
            module, attribute, old, new = change
            if whole or id(new) in shown:
                group.changes.remove(change)
                if vars(module).get(attribute, MISSING) is old:
                    put(module, attribute, new)
                if attribute in (known := self._functions.get(module.__name__, {})):
                    known[attribute] = new
        for end in [*group.exits]:
            if whole or getattr(end[0], "__module__", None) in self._shown:
                group.exits.remove(end)
                register(*end)
        if not whole:
            return
        for one in reversed(group.filters):
            filters().insert(0, one)
        if group.filters:
            mutated()
        for name, value in group.environ.items():
            os.environ.setdefault(name, value)
        for name, logger in group.loggers.items():
            loggers()[name] = logger
            getattr(logger, "_cache", {}).clear()
        group.brought = group.environ
        group.filters, group.environ, group.loggers = [], {}, {}

    def _change(self, name: str, heavy: bool, groups: "Sequence[ImportGroup]") -> str:
        """What the program changed that counts for this import; empty: nothing."""
        if place := self._shadow():
            return f"{place} was added"
        if not heavy:
            return self._before.light_change()
        pure = TORCH not in self._hidden
        if pure and not any(group.name == DYNAMO for group in groups):
            return ""  # a part of torch that reads no variables
        if why := (self._before.pure_change(self._counts) if pure else self._before.change(self._counts)):
            return why
        for one, module in self._shown.items():
            if sys.modules.get(one) is not module:
                return f"sys.modules[{one!r}] was replaced"
        for group in groups:
            if taken := next((one for one in group.modules if one in self._hidden and one in sys.modules), ""):
                return f"sys.modules[{taken!r}] was set"
            if taken := next((one for one in group.loggers if one in loggers()), ""):
                return f"the logger {taken} was made"
        if changed := self._replaced():
            return f"{changed} was replaced"
        if not pure and (library := self._before.loaded(("numpy", *LIGHT))):
            return f"the library {library} was loaded"
        return ""

    def _counts(self, name: str) -> bool:
        return is_read(name) or name in self._reads

    def _shadow(self) -> str:
        """A file or folder that would be imported instead of one of these; empty: none."""
        tops = {name.partition(".")[0] for name in self._hidden}
        for folder in sys.path:
            if folder in self._before.path:
                continue
            try:
                names = os.listdir(folder or ".")  # noqa: PTH208  # no more imports
            except NotADirectoryError:
                return folder
            except OSError:
                continue
            for name in names:
                if name.partition(".")[0] in tops and (name.endswith((".py", ".pyc", ".so")) or "." not in name):
                    return f"{folder}/{name}"
        return ""

    def _replaced(self) -> str:
        """A function or class of the standard library that is not the one it was, nor its module's own (`importlib.reload`)."""
        for name, before in self._functions.items():
            module = sys.modules.get(name)
            if module is not None and module is not bootstrap and name not in ("sys", "__main__", "__mp_main__"):
                now = vars(module)
                for one, value in before.items():
                    if now.get(one, value) is not value and getattr(now[one], "__module__", None) != name:
                        return f"{name}.{one}"
        return ""


def is_module(module: object) -> bool:
    """Whether an entry of sys.modules has attributes of its own; anything may be there."""
    return isinstance(module, type(sys))


def functions(module: "ModuleType") -> "dict[str, Any]":
    """What a module of the standard library offers."""
    return {name: value for name, value in vars(module).items() if isinstance(value, FUNCTIONS)}


def changes(name: str, before: "dict[str, Any]", new: "set[int]") -> "list[tuple[ModuleType, str, Any, Any]]":
    """The attributes of a module that differ from before: of the standard library all, of others those that are `new` modules."""
    module = sys.modules.get(name)
    if module is None or not is_module(module):
        return []
    found = []
    for attribute, value in vars(module).items():
        old = before.get(attribute, MISSING)
        if old is not value and (id(value) in new or is_standard(name)):
            found.append((module, attribute, old, value))
    return found


def put(module: "ModuleType", attribute: str, value: "Any") -> None:
    """Set an attribute of a module, or take it away."""
    if value is MISSING:
        vars(module).pop(attribute, None)
    else:
        vars(module)[attribute] = value


LOGGING: "list[Any]" = []  # the module, which may be hidden


def loggers() -> "dict[str, Any]":
    """The table of all loggers."""
    if not LOGGING and "logging" in sys.modules:
        LOGGING.append(sys.modules["logging"])
    return LOGGING[0].root.manager.loggerDict if LOGGING else {}


def register(function: "Any", *words: "Any") -> None:
    """Have a function called at the exit, once; `weakref` does so itself when it is first used."""
    if is_finalizer(function):
        if function.__self__._registered_with_atexit:
            return
        function.__self__._registered_with_atexit = True
    atexit.register(function, *words[:-1], **words[-1])


def is_finalizer(function: "Any") -> bool:
    """Whether a function is that of `weakref.finalize`."""
    return getattr(function, "__qualname__", "") == "finalize._exitfunc"


def mutated() -> None:
    """Tell Python that the filters of warnings are others."""
    import _warnings

    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        if tell := getattr(_warnings, name, None):
            tell()
            return
