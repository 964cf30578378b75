"""What a loop does that a restart cannot repeat, and the lines that say so."""

from __future__ import annotations

import dis
import gc
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipway.train.user.found import is_users, live_objects
from slipway.train.user.gradients import Gradients
from slipway.train.user.names import state_of_model, without_wrappers
from slipway.train.user.objects import Objects, shapes

EARLY = 2  # epochs that use a model early until that is named
SHOWN = 3  # names in a line
AHEAD = 3  # turns within a pass: at the first nothing was done, and a step before each of the others
COUNTERS: tuple[type, ...] = (enumerate, zip, islice)
DEEPEST = 3  # iterators around one another, such as enumerate(tqdm(run.batches(loader)))
PAST = (
    "warning: steps are done in an epoch, and nothing is read by run.batches: after a resume within it the epoch begins again, "
    "with samples that were trained on. Iterate over run.batches(loader), or leave out run.boundary() within the epoch."
)
UNSET = re.compile(r"'(\w+)'")  # the variable in the message of a NameError


class Modes:
    """Whether a passed model that had steps in training mode has one in eval mode, in which a validation may have left it."""

    def __init__(self, objects: Objects, warn: Callable[[str], object]) -> None:
        """`warn` gets a line, once for each model, at a step of a passed optimizer of its parameters."""
        self._trained: set[str] = set()  # those that had a step in training mode, until they were told of
        self._warn = warn
        models = objects.named_of_kind(nn.Module)
        own = {name: {*map(id, model.parameters())} for name, model in models.items()}
        for optimizer in objects.of_kind(torch.optim.Optimizer):
            steps = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            trains = {name: without_wrappers(models[name]) for name in models if own[name] & steps}
            optimizer.register_step_post_hook(lambda *_, trains=trains: self._note_step(trains))

    def _note_step(self, models: Mapping[str, nn.Module]) -> None:
        for name, model in models.items():
            if model.training:
                self._trained.add(name)
            elif name in self._trained:
                self._trained.remove(name)
                self._warn(
                    f"warning: {name} has a step in eval mode, and had others in training mode. A restart begins in the mode "
                    f"that the script sets. Call {name}.train() after each validation."
                )


class EarlyUse:
    """Whether epochs use a passed model before they read their data: to choose hard examples, to label others, to play. A resume
    within the epoch does that again, with later weights.
    """

    def __init__(self, objects: Objects, warn: Callable[[str], object]) -> None:
        """`warn` gets a line in the second epoch that does; a single one may be the validation before a training."""
        models, compiled = objects.named_of_kind(nn.Module), set[int]()
        if "torch._dynamo" in sys.modules:  # a hook would have such a model compiled once more
            outer = live_objects(lambda kind: kind.__name__ == "OptimizedModule")
            compiled = {id(without_wrappers(each)) for each in outer}
        self._models = {name: each for name, each in models.items() if id(each) not in compiled}
        self._warn, self._left = warn, EARLY
        self._hooks: list[Any] = []
        self._used = ""

    def begin_epoch(self) -> None:
        """Note that the code of an epoch begins."""
        if self._left and not self._hooks:
            self._hooks = [
                module.register_forward_pre_hook(UseHook(partial(self._note_use, name)))
                for name, each in self._models.items()
                for module in each.modules()
            ]

    def begin_data(self) -> None:
        """Note that it reads its data."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, used, self._used = [], self._used, ""
        self._left -= bool(used) if self._left else 0
        if used and not self._left:
            self._warn(
                f"note: each epoch uses {used} before its data are read: after a resume within an epoch it does so again, with "
                "the weights of then. Keep in run.state what comes of it, or make that at the end of the epoch before."
            )

    def _note_use(self, name: str) -> None:
        frames = (frame for frame in outwards(sys._getframe()) if is_users(frame.f_globals))
        if self._hooks and not self._used and (frame := next(frames, None)):
            self._used = f"{name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


class UseHook:
    """A hook of a module that is called with it, and when the module is copied. Pickled with a module, it does nothing."""

    def __init__(self, note: Callable[[], object] = lambda: None) -> None:
        """`note` is called."""
        self._note = note

    def __call__(self, *_: Any) -> None:
        """Before a forward."""
        self._note()

    def __deepcopy__(self, memo: Any) -> UseHook:
        """Of a module that is copied."""
        self._note()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Of one that is pickled."""
        return UseHook, ()


class Structure:
    """What the objects that were passed consisted of in `slipway.resume`, since that is what a restart will load states into."""

    def __init__(self, objects: Objects) -> None:
        """Look at them now."""
        self._objects = objects
        self._begun = dict(structures(objects))

    def changes(self) -> Iterator[str]:
        """Yield a line for each object that no restart could load any more, once."""
        for name, now in structures(self._objects):
            before = self._begun.pop(name, now)
            if isinstance(now, list) and now != before:
                yield (
                    f"warning: {name} has groups of {listed(now)} parameters, and had {listed(before)} in slipway.resume: no "
                    "restart can load the snapshots from here on. Give the optimizer all parameters before slipway.resume: "
                    "those that are frozen, without a gradient, stay as they are."
                )
            elif now != before:
                odd = sorted({key for key in {**now, **before} if now.get(key) != before.get(key)})
                yield (
                    f"warning: {name} has other tensors than in slipway.resume ({listed(odd)}): no restart can load the "
                    "snapshots from here on. Build the whole model before slipway.resume."
                )
            else:
                self._begun[name] = before


def structures(objects: Objects) -> Iterator[tuple[str, Any]]:
    """Yield what decides whether a state can be loaded, by object: shapes of tensors, numbers of parameters."""
    for name, model in objects.named_of_kind(nn.Module).items():
        yield name, shapes(state_of_model(model))  # compiled later, it has the same
    for name, optimizer in objects.named_of_kind(torch.optim.Optimizer).items():
        yield name, [len(group["params"]) for group in optimizer.param_groups]


def listed(values: list[Any]) -> str:
    """Return values in words, the first ones of many."""
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(map(str, values[:SHOWN])) + more


def explain_unset(error: BaseException | None, step: int) -> str:
    """Return why a variable had no value in a loop that resumed after `step`; empty for any other error."""
    named = UNSET.search(str(error)) if isinstance(error, NameError) else None
    frame = error.__traceback__ if error else None
    while frame and frame.tb_next:
        frame = frame.tb_next
    if not named or not frame or named[1] not in set_in(frame.tb_frame.f_code):
        return ""
    return (
        f"slipway: the loop resumed after step {step}, and `{named[1]}` is set in an iteration before that. Set it before the "
        f"loop, or keep it in run.state: run.state[{named[1]!r}]."
    )


def set_in(code: CodeType) -> set[str]:
    """Return the names of the variables that code gives a value."""
    stored = (each for each in dis.get_instructions(code) if each.opname.startswith("STORE_"))
    return {name for each in stored for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))}


def explain_counter(own: FrameType) -> str:
    """Return a line where the loop over `run.batches` counts batches itself, or reads others beside them; `own`: its frame."""
    frames = [*islice(outwards(own), DEEPEST + 2)]
    if not any(kind.__name__ in frame.f_code.co_names for frame in frames[1:] for kind in COUNTERS):
        return ""  # looking for it takes a tenth of a second
    around = next((each for each in gc.get_objects() if type(each) in COUNTERS and leads_to(each, frames)), None)
    if isinstance(around, islice):
        return (
            "warning: islice(run.batches(…)) counts from 0 again after a resume, so that its epoch has more batches than without "
            "a failure. Use run.batch instead: if run.batch >= N: break."
        )
    if isinstance(around, zip):
        return (
            "warning: zip(…, run.batches(…)): what else it reads begins again after a resume within an epoch, and is not what "
            "was read beside these batches. Pass all in one: run.batches(zip(…)); the number of the batch is run.batch."
        )
    if isinstance(around, enumerate) and any(reads_number(frame) for frame in frames):
        return (
            "note: enumerate(run.batches(…)) counts from 0 again after a resume within an epoch, so that what depends on its "
            "number is not the same. Pass the loader to run.enumerate(loader) instead, or use run.batch."
        )
    return ""


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame:
        yield frame
        frame = frame.f_back


def leads_to(iterator: Any, frames: list[FrameType], depth: int = DEEPEST) -> bool:
    """Whether an iterator reads, perhaps through others, from a generator that runs in one of these frames."""
    if any(getattr(iterator, "gi_frame", None) is frame for frame in frames):
        return True
    return depth > 0 and any(leads_to(each, frames, depth - 1) for each in read_by(iterator))


def read_by(iterator: Any) -> list[Any]:
    """Return the iterators that an iterator refers to; some have several, in a tuple."""
    inside = gc.get_referents(iterator)
    inside += [each for several in inside if type(several) is tuple for each in several]
    return [each for each in inside if hasattr(type(each), "__next__")]


def reads_number(frame: FrameType) -> bool:
    """Whether a loop that stands at its next item reads the number of it, the first of two variables, before it sets it."""
    code = [each for each in dis.get_instructions(frame.f_code) if each.offset >= frame.f_lasti]
    if not code or code[0].opname != "FOR_ITER":
        return False
    if len(code) < 2 or code[1].opname != "UNPACK_SEQUENCE":
        return True
    variables = [
        (what, name)
        for each in code[2:]
        for what, name in zip(
            re.findall("LOAD|STORE", each.opname),
            each.argval if isinstance(each.argval, tuple) else (each.argval,),
            strict=False,
        )
    ]
    return next((what == "LOAD" for what, name in variables[1:] if name == variables[0][1]), False)


class Iterators:
    """The iterators that loops were given before. One that is given again continues, but a restart would begin it again."""

    def __init__(self) -> None:
        """None yet."""
        self._before: dict[int, list[Callable[[], Any]]] = {}

    def goes_on(self, loader: Any, call: int) -> bool:
        """Whether `loader` is an iterator that was read before, or reads from one. `call`: its place in the epoch."""
        new = [*sources_of(loader)] if isinstance(loader, Iterator) else []
        known = [each() for several in self._before.values() for each in several]
        self._before[call] = [weakly(each) for each in new]
        return any(each is other for each in new for other in known)


def weakly(value: Any) -> Callable[[], Any]:
    """Return what returns the value, without keeping it alive where that is possible: not with an iterator over a list."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def sources_of(iterator: Any, depth: int = 2 * DEEPEST) -> Iterator[Any]:
    """Yield the iterators that an iterator reads from and that read from no others; itself, if there are none."""
    inside = read_by(iterator) if depth else []
    for each in inside:
        yield from sources_of(each, depth - 1)
    if not inside or hasattr(iterator, "gi_code"):
        yield iterator


class Ahead:
    """Whether each batch is trained on after the next one was taken, as by a prefetcher around `run.batches`."""

    def __init__(self) -> None:
        """Before the first pass."""
        self._turns: list[bool] = []
        self._told = False

    def begin(self) -> None:
        """Note that a pass begins."""
        self._turns = []

    def turn(self, gradients: Gradients) -> None:
        """Note that the next batch is asked for."""
        if len(self._turns) < AHEAD or not gradients.stepped:
            self._turns.append(gradients.stepped or (not self._turns and gradients.pending))

    def end(self, stepped: bool) -> str:
        """Note that the epoch is over. Returns a line, once; `stepped`: a step was done after the last turn."""
        ahead = stepped and len(self._turns) == AHEAD and not self._turns[0] and all(self._turns[1:])
        if not ahead or self._told:
            return ""
        self._told = True
        return (
            "warning: each batch of run.batches is trained on after the next one was taken, as by a prefetcher around it: what "
            "was taken counts as trained on, so a restart leaves a batch out. Put the prefetcher inside: "
            "run.batches(Prefetcher(loader))."
        )


class PastReads:
    """Notices data loaders that the script reads on without `run.batches` in a later iteration, in each or for a validation now
    and then: a restart begins them again, and draws the numbers for the order of a pass at another step.
    """

    def __init__(self) -> None:
        """Before the first iteration."""
        self.within = False  # whether run.batches reads
        self._iteration = self._past = 0
        self._state = ""
        self._read: WeakKeyDictionary[Any, int] = (
            WeakKeyDictionary()
        )  # passes, each with the iteration that read it last
        self._data, self._told, self._thread = "", False, threading.get_ident()
        self._usual = _BaseDataLoaderIter.__next__
        _BaseDataLoaderIter.__next__ = self._noting()  # type: ignore[method-assign, assignment]

    def _noting(self) -> Callable[[Any], Any]:
        usual, run = self._usual, weakref.ref(self)

        def read(iterator: Any) -> Any:
            if (own := run()) is not None and type(iterator).__module__ == DataLoader.__module__:
                own._note(iterator)
            return usual(iterator)

        return read

    def _note(self, iterator: Any) -> None:
        if not self.within and self._thread == threading.get_ident():
            if self._read.setdefault(iterator, self._iteration) != self._iteration:
                self._data = type(iterator._dataset).__name__
            self._read[iterator] = self._iteration

    def end(self) -> str:
        """Note that an iteration is over. Returns a line, once, about a loader that was read in it and in one before."""
        self._iteration += 1
        if self._told or not self._data:
            return ""
        self._told = True
        return (
            f"warning: a DataLoader over {self._data} is read without run.batches: after a resume it begins again, at other "
            "samples. Iterate over run.batches(loader), or over run.batches(zip(first, second)) for two at once; in a "
            "validation, begin a pass of its own each time: for batch in loader."
        )

    def close(self) -> None:
        """Look no more."""
        _BaseDataLoaderIter.__next__ = self._usual  # type: ignore[method-assign]

    def note_past(self, state: Mapping[str, Any]) -> str:
        """Note a boundary after a step in an epoch in which nothing was read by run.batches. Returns a line about the second,
        unless run.state, where a loop may keep its own position, has changed.
        """
        self._past, before, self._state = self._past + 1, self._state, str(state) if self._past < 2 else ""
        if self._past != 2 or self._state != before:
            return ""
        self._told = True  # one line is enough
        return PAST
