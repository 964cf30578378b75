"""A worker's sign of life: one small file that says where it stands, for the launcher to notice when it hangs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

INTERVAL = 0.5  # seconds; how often it is written within a phase


class Heartbeat:
    """Written by the thread that trains and by no other, so that it stands still when training does."""

    def __init__(self, path: Path) -> None:
        """Use the file `path`. Nothing fails where it cannot be written: a full disk has better messengers."""
        self._path = path
        self._phase = ""
        self._written = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return

    def beat(self, phase: str, step: int, steps: int | None) -> None:
        """Say that `step` of `steps` is done and `phase` goes on: at every change of phase, else twice a second."""
        now = time.monotonic()
        if phase == self._phase and now - self._written < INTERVAL:
            return
        self._phase, self._written = phase, now
        record = {"phase": phase, "step": step, "steps": steps, "monotonic": now, "pid": os.getpid()}
        temporary = self._path.with_name(f".{self._path.name}")
        try:
            temporary.write_text(json.dumps(record) + "\n")
            temporary.replace(self._path)
        except OSError:
            return
