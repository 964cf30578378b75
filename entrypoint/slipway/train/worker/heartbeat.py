"""A worker's sign of life: one small file that says where it stands, for the launcher to notice when it hangs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from slipway.protocol.files import held_folder
from slipway.protocol.phases import PHASES, Phase

INTERVAL = 0.5  # seconds; how often it is written within a phase
TRAINS = (Phase.TRAIN, Phase.DATA)
ASK = 2.0  # seconds between two looks at whether this attempt is still the newest


class Heartbeat:
    """Beats come from the thread that trains and from no other, so that they stand still when training does."""

    def __init__(self, path: Path, superseded: Callable[[], bool] = lambda: False) -> None:
        """Use the file `path`. Nothing fails where it cannot be written: a full disk has better messengers.

        Every few seconds a beat asks whether the run is `superseded`, and ends this process where it is.
        """
        self._path, self._superseded, self._asked = path, superseded, time.monotonic()
        self._phase: Phase | None = None
        self._written = 0.0
        self._beats = 0
        self._first: int | None = None  # the step that training began with
        self._spent: dict[str, float] = {}  # seconds in each phase
        self._highest, self._again = 0, 0.0  # the highest step; seconds of training below it, after going back
        self._newest: dict[str, Any] = {}
        self.facts: Mapping[str, Any] = {}  # that every beat tells from now on
        self._late: Timer | None = None  # the newest that was started
        self._due = False  # whether it has still to write
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return

    def beat(self, phase: Phase, step: int, steps: int | None) -> None:
        """Say that `step` of `steps` is done and `phase` goes on: at every change of phase, else twice a second.

        The last of several beats is never left out: it is where a rank hangs, and what tells it from the others.
        ValueError for a phase that there is not: nobody would know how long it may last.
        """
        if phase not in PHASES:
            raise ValueError(f"there is no phase {phase!r}; there are {', '.join(PHASES)}")
        now = time.monotonic()
        self._beats += phase not in (Phase.DATA, Phase.PREPARE)  # which some say more often than others
        if self._phase is not None:
            passed = now - self._newest["monotonic"]
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + passed
            again = min(step, self._newest["step"]) < self._highest and self._phase in TRAINS
            self._again += passed if again else 0.0
        if self._first is None and phase not in (Phase.SETUP, Phase.PREPARE, Phase.LOAD):
            self._first = step
        self._highest = max(self._highest, step)
        place = {"phase": phase, "step": step, "steps": steps, "beats": self._beats, "first": self._first}
        spent = {"spent": {**self._spent}, "again": self._again}
        self._newest = {**self.facts, **place, "monotonic": now, "pid": os.getpid(), **spent}
        changed, self._phase = phase != self._phase, phase
        if now - self._asked >= ASK:
            self._asked = now
            if self._superseded():
                print("another launcher went on with this run: this process ends", file=sys.stderr, flush=True)
                os._exit(1)  # without an outcome file: it would be taken for one of the new attempt
        if changed or now - self._written >= INTERVAL:
            self._written = now
            self._write()
        elif not self._due:
            self._due = True
            self._late = Timer(INTERVAL, self._catch_up)
            self._late.daemon = True
            self._late.start()

    def close(self) -> None:
        """Write a beat that was to be written later: the end of the process would cut that short, and leave half a file."""
        if self._late:
            self._late.cancel()
            self._late.join()
            if self._due:
                self._write()

    def _catch_up(self) -> None:
        self._due = False  # a beat that comes from here on starts another
        self._write()

    def _write(self) -> None:
        with self._lock, suppress(OSError), held_folder(self._path.parent) as folder:
            temporary = folder / f".{self._path.name}"
            temporary.unlink(missing_ok=True)  # what somebody put there is not written to
            with temporary.open("x") as file:
                file.write(json.dumps(self._newest) + "\n")
            temporary.replace(folder / self._path.name)
