"""Writes a snapshot in child processes that die at every operation on the disk in turn: `python crashing_writer.py DIR`.

Prints for each how many operations were done, the steps of the snapshot that loads afterwards and of those that do not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slipway.protocol import durable
from slipway.train.snapshots.snapshot import Snapshot, load_newest, save_snapshot

OPERATIONS = ("mkdir", "rename", "unlink", "rmdir", "fsync")
DIED = 9


def make_snapshot(step: int) -> Snapshot:
    numbers = {"weight": torch.full((300,), float(step)), "bias": torch.arange(step)}
    return Snapshot(
        step, {"position": step}, {"model": numbers, "optimizer": numbers, "ranks": {"0.cpu": torch.ones(9)}}
    )


class Clock:
    """Counts operations, and ends the process before the one numbered `last`; of a write it lets half come through."""

    def __init__(self, last: int) -> None:
        self.done, self.last = 0, last

    def tick(self, half: Callable[[], None] = lambda: None) -> None:
        if self.done == self.last:
            half()
            os._exit(DIED)
        self.done += 1

    def install(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._counted(getattr(os, name)))
        real = durable.pieces

        def pieces(chunks: Any) -> Any:
            for piece in real(chunks):
                # The first half of a piece, then the rest: a write that a crash tears.
                yield piece[: len(piece) // 2]
                self.tick()
                yield piece[len(piece) // 2 :]

        durable.pieces = pieces

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self.tick()
            return real(*args, **more)

        return counted


def crash(folder: Path, last: int, steps: tuple[int, ...], keep: int) -> bool:
    """Write a snapshot for each of the `steps` in a child that dies at operation `last`. Returns whether it did."""
    child = os.fork()
    if child == 0:
        Clock(last).install()
        for step in steps:
            save_snapshot(folder, make_snapshot(step), keep)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED


def main(root: Path) -> None:
    for last in range(1000):
        folder = Path(tempfile.mkdtemp(dir=root))
        save_snapshot(folder, make_snapshot(1), keep=1)
        died = crash(folder, last, (2, 3), keep=1)
        warnings: list[str] = []
        found = load_newest(folder, warnings.append)
        whole = found is not None and all(
            found[1].tensors[stem][name].equal(tensor)
            for stem, tensors in make_snapshot(found[1].step).tensors.items()
            for name, tensor in tensors.items()
        )
        save_snapshot(folder, make_snapshot(4), keep=1)  # what was left behind does not stand in the way
        left = [path.name for path in folder.iterdir()]
        print(
            json.dumps({"step": found[1].step if found else None, "whole": whole, "warnings": warnings, "left": left})
        )
        shutil.rmtree(folder)
        if not died:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
