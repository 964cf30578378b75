"""What `slipway prove` sees of a training: a process writes down what goes into its models, and all states at each boundary.

In proving runs alone, `nn.Module.__call__` is wrapped, since torch's global forward hooks are not given keyword arguments. Events
are counted from the last boundary, by whose position a run that was killed and one that was not find the same event. A kill is a
SIGKILL of this process at an event that was chosen before.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook

from slipway.protocol.files import STOP_FILE, read_json, write_json
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.outcomes import Word
from slipway.protocol.proof import FAILURE, REQUEST, VARIABLE, Event, EventKind, event_file, killed_file
from slipway.train.observe.fingerprints import GENERATORS, fingerprint, hash_of_text, named_hashes
from slipway.train.snapshots.job import JobSnapshots
from slipway.train.snapshots.state import other_random_states, random_states
from slipway.train.worker.context import Context

POSITION = ("step", "iteration", "epoch", "call", "samples", "batches")  # what tells boundaries from each other


def is_proving(environ: Mapping[str, str]) -> bool:
    """Whether `slipway prove` started this process."""
    return bool(environ.get(VARIABLE))


def open_witness(
    environ: Mapping[str, str],
    context: Context,
    snapshots: JobSnapshots,
    place: Callable[[], Mapping[str, Any]],
    passed: Mapping[str, Any],
    search: Callable[[], Iterable[Any]] = tuple,
    script: Callable[[], Iterable[Any]] = tuple,
) -> Witness | None:
    """Return the witness of this process in a proving run, else None. `place` returns the position, `search` finds objects that
    were not `passed` (train/user/found.py), and `script` the plain values that a script has (train/user/script_values.py).

    Raises ConfigurationError where the attempt before failed by itself, since another one would only repeat that.
    """
    if not is_proving(environ):
        return None
    folder, attempt = Path(environ[VARIABLE]), int(environ.get("SLIPWAY_ATTEMPT") or 1)
    request = read_json(folder / REQUEST)
    if attempt > 1 + sum(killed_file(folder, number).exists() for number, _ in enumerate(request["kills"])):
        reason = environ.get("SLIPWAY_PREVIOUS_OUTCOME", "")
        (folder / FAILURE).write_text(reason)
        raise ConfigurationError(
            f"slipway prove goes no further: the attempt before this one failed by itself: {reason}"
        )
    witness = Witness(folder, request, context, snapshots, place, passed, search, script)
    witness.open(event_file(folder, context.place.rank, attempt))
    return witness


class Witness:
    """Writes down the events of this process."""

    def __init__(
        self,
        folder: Path,
        request: Mapping[str, Any],
        context: Context,
        snapshots: JobSnapshots,
        place: Callable[[], Mapping[str, Any]],
        passed: Mapping[str, Any],
        search: Callable[[], Iterable[Any]],
        script: Callable[[], Iterable[Any]],
    ) -> None:
        """See open_witness."""
        self._folder, self._steps, self._kills = folder, request["steps"], request["kills"]
        self._context, self._snapshots, self._place = context, snapshots, place
        self._passed, self._search, self._script = passed, search, script
        self._found: dict[str, Any] = {}  # by the name under which they were found first
        self._at, self._number, self._epoch, self._unsettled = "", 0, None, False
        self._away = False  # within a module, or in what is no part of the training
        self._scales: dict[str, float] = {}
        self._facts: dict[str, Any] = {"loop": "", "warmed": False, "left_out": 0}
        self._owner = os.getpid(), threading.get_ident()

    def open(self, file: Path) -> None:
        """Begin to write, and to be called by torch."""
        self._file = file.open("w")
        self.begin("")
        register_optimizer_step_post_hook(self._note_step)
        real = nn.Module.__call__

        def call(module: nn.Module, *inputs: Any, **more: Any) -> Any:
            if self._away or torch.compiler.is_compiling() or not self._is_here():
                return real(module, *inputs, **more)
            return self._note_forward(real, module, inputs, more)

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _is_here(self) -> bool:
        """Whether this is neither a worker of a data loader nor another thread."""
        return self._owner == (os.getpid(), threading.get_ident())

    # What a run calls

    def begin(self, loop: str) -> None:
        """Note all states where the loop of this name begins or resumes; what happened so far in this attempt does not count.

        `loop`: empty if it is not known, since `resume` returns long before.
        """
        if self._facts["loop"]:
            return
        self._facts["loop"] = loop
        self._find()
        self._move()
        with self.aside():
            where = {each.name: where for each in self._script() if (where := each.where())}
        self._write(EventKind.BEGIN, self._states(), facts={**self._describe(), "where": where})

    def note_batch(self, batch: Any, workers: str = "") -> None:
        """Note a batch that is about to be handed out. `workers`: the class of the data that worker processes read it from."""
        with self.aside():
            self._write(EventKind.BATCH, {"": fingerprint(batch)}, facts={"workers": workers} if workers else {})

    def note_log(self, values: Mapping[str, Any]) -> None:
        """Note what `run.log` was called with."""
        self._write(EventKind.LOG, {name: repr(float(value)) for name, value in values.items()})

    def note_boundary(self, stepped: bool = True) -> None:
        """Note all states, before they are saved, if an optimizer has stepped. Ask for a stop when the steps are done."""
        self._move()
        if not stepped:
            return
        if self._place().get("epoch") != self._epoch:
            self._find()
        self._count_left_out()
        self._write(EventKind.BOUNDARY, self._states(), facts=self._describe())
        self._unsettled = True
        ahead = (
            self._context.side is not None
        )  # several processes agree on a stop at one boundary, and stop at the next
        if self._place()["step"] >= self._steps - ahead and self._context.is_local_leader:
            write_json(self._context.place.node_dir / STOP_FILE, {"outcome": Word.STOPPED})

    @contextmanager
    def aside(self, *, warms_up: bool = False) -> Iterator[None]:
        """Within the block nothing is noted: it is no part of the training."""
        before, self._away = self._away, True
        self._facts["warmed"] = self._facts["warmed"] or warms_up
        try:
            yield
        finally:
            self._away = before

    # What torch calls

    def _note_forward(
        self, real: Callable[..., Any], module: nn.Module, inputs: tuple[Any, ...], more: dict[str, Any]
    ) -> Any:
        validates, facts = not (module.training and torch.is_grad_enabled()), {"module": type(module).__name__}
        with self.aside():
            self._write(EventKind.FORWARD, {"": fingerprint((inputs, more))}, validates, facts)
            output = real(module, *inputs, **more)
            if validates:
                self._write(EventKind.OUTPUT, {"": fingerprint(output)}, validates, facts)
        return output

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, more: object) -> None:
        if not self._away:
            rates = [repr(float(group["lr"])) for group in optimizer.param_groups if "lr" in group]
            self._write(EventKind.STEP, {"lr": ", ".join(rates)}, facts={"optimizer": type(optimizer).__name__})

    # States

    def _find(self) -> None:
        self._epoch = self._place().get("epoch")
        known = {id(each.ref()) for each in self._found.values()}
        for each in self._search():
            name = each.name or each.kind
            if id(each.ref()) not in known and name not in self._passed:
                self._found.setdefault(name, each)

    def _objects(self) -> dict[str, Any]:
        live = {name: each.ref() for name, each in self._found.items()}
        return {**self._passed, **{name: each for name, each in live.items() if each is not None}}

    def _states(self) -> dict[str, Any]:
        with self.aside():
            objects = self._objects()
            modules = [each for each in objects.values() if isinstance(each, nn.Module)]
            own = {id(tensor) for each in modules for tensor in each.parameters()}
            return named_hashes({name: state_of(each, own) for name, each in objects.items()})

    def _describe(self) -> dict[str, Any]:
        """Return what a message needs about the objects, and what their hashes do not show."""
        objects = self._objects()
        described = {
            name: [type(each).__name__, self._found[name].where if name in self._found else "", name in self._passed]
            for name, each in objects.items()
        }
        # A class that does not call Optimizer.__init__ has no hooks.
        optimizers = {name: type(each) for name, each in objects.items() if isinstance(each, torch.optim.Optimizer)}
        hookless = [name for name, kind in optimizers.items() if not getattr(kind.step, "hooked", False)]
        length = self._place().get("length")
        with self.aside():
            script = {each.name: fingerprint(each.value) for each in self._script()}
        described = {name: [*each, *kind_of(objects[name])] for name, each in described.items()}
        return {**self._facts, "objects": described, "hookless": hookless, "length": length, "script": script}

    def _count_left_out(self) -> None:
        """Count the steps that gradient scalers have left out: then their scale falls."""
        for name, each in self._objects().items():
            if isinstance(each, GradScaler):
                self._facts["left_out"] += each.get_scale() < self._scales.get(name, 0.0)
                self._scales[name] = each.get_scale()

    # Writing

    def _move(self) -> None:
        """Count events from the position that the training is at now."""
        place = self._place()
        at = json.dumps({name: place[name] for name in POSITION if name in place})
        if at != self._at:
            self._at, self._number = at, 0

    def _write(
        self,
        kind: EventKind,
        values: Mapping[str, Any],
        validates: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if not self._is_here():
            return
        if self._unsettled:  # a kill goes back to the last boundary, and no further
            self._unsettled = False
            self._snapshots.memory.wait_for_room()
            self._snapshots.memory.wait()
            self._snapshots.writer.wait()
        if kind not in (EventKind.BEGIN, EventKind.BOUNDARY):
            self._number += 1
            self._kill_if_chosen()
        states = {**random_states(self._context.device), **other_random_states()}
        drawn = {name: hash_of_text(bytes(state.numpy())) for name, state in states.items()}
        event = Event(kind, self._at, self._number, values, drawn, validates, facts or {})
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def _kill_if_chosen(self) -> None:
        """End this process if a kill was chosen for this event, and not done by an attempt before."""
        now = [self._context.place.rank, self._at, self._number]
        for number, kill in enumerate(self._kills):
            done = killed_file(self._folder, number)
            if kill == now and not done.exists():
                done.touch()
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


def state_of(value: Any, of_modules: Collection[int]) -> Any:
    """Return an object's state; that of an optimizer with the parameters that belong to no module."""
    if isinstance(value, (*GENERATORS, dict)):
        return value
    if not isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    trained = [parameter for group in value.param_groups for parameter in group["params"]]
    return {**value.state_dict(), "params": [each for each in trained if id(each) not in of_modules]}


def kind_of(value: Any) -> tuple[str, int, int]:
    """Return as what an object is counted, and how many parameters and buffers it has."""
    if isinstance(value, nn.Module):
        return "model", len([*value.parameters()]), len([*value.buffers()])
    if isinstance(value, (torch.optim.Optimizer, *GENERATORS)):
        return "optimizer" if isinstance(value, torch.optim.Optimizer) else "generator", 0, 0
    others = "values" if isinstance(value, dict) else "other"
    return "scheduler" if hasattr(value, "last_epoch") else others, 0, 0
