"""Workers that are no processes: what they would write goes through a real WorkerOutput."""

from __future__ import annotations

import os
import re
import selectors
from collections.abc import Callable
from pathlib import Path

from slipway.launch.attempt.worker_output import WorkerOutput


class Output:
    """The output with its selector. Streams are numbered: stdout and stderr of the first rank, of the second, …"""

    def __init__(
        self, ranks: tuple[int, ...], node_rank: int, alone: bool, folder: Path, builtin: bool = False
    ) -> None:
        self.selector = selectors.DefaultSelector()
        self.output = WorkerOutput(
            list(ranks), node_rank, alone, folder, self.selector, lambda: False, "attempt 2", builtin
        )

    def write(self, text: bytes, stream: int = 0) -> None:
        """Write into a worker's pipe, and let all be read that is there."""
        os.write(self.output.writers[stream], text)
        self._read(0)

    def end(self) -> None:
        """The workers end."""
        self.output.close_writers()
        while self.output.open and self._read(5):
            continue
        self.output.close()

    def _read(self, seconds: float) -> bool:
        came = False
        while ready := self.selector.select(0 if came else seconds):
            came = True
            for key, _ in ready:
                key.data()
            if not self.output.open:
                break
        return came


def logged(folder: Path, rank: int = 0) -> bytes:
    """A rank's log without the times in front of its lines; what stands above an attempt has none."""
    lines = (folder / f"rank-{rank}.log").read_bytes().splitlines(keepends=True)
    for line in lines:
        assert re.match(rb"--- attempt 2 ---\n$|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line), line
    return b"".join(line if line.startswith(b"--- ") else line[25:] for line in lines)


MakeOutput = Callable[..., Output]
