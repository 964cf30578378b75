"""The stop flag: a file that the launcher writes, and the step at which all ranks agree to have seen it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from slipway.protocol.files import read_json
from slipway.protocol.outcomes import Word

WORDS = (None, Word.STOPPED, Word.CANCELLED)  # by the number that the ranks exchange; the larger one wins


class StopFlag:
    """Agreement among all ranks on whether to stop, on whether one of them still waits for data, and on steps to trace.

    `wanted` tells, where it is set, how many steps somebody wants traced now: on rank 0, before each exchange.
    """

    def __init__(self, path: Path | None, group: dist.ProcessGroup | None) -> None:
        """Look for the file `path` (None on ranks that leave it to others) and agree over the gloo `group`."""
        self._path = path
        self._group = group
        self._numbers = torch.zeros(3, dtype=torch.int64)
        self._work: dist.Work | None = None
        self.wanted: Callable[[], int] | None = None
        self._steps = 0

    def begin_stop_exchange(self, late: bool = False) -> None:
        """Begin to exchange what this rank sees now, and whether its next data are `late`; waits for nobody."""
        self.close()
        word = read_stop_flag(self._path) if self._path else None
        self._numbers = torch.tensor([WORDS.index(word), int(late), self.wanted() if self.wanted else 0])
        if self._group is not None:
            self._work = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group=self._group, async_op=True)
        else:
            self._note_steps()

    def finish_stop_exchange(self) -> tuple[str | None, bool]:
        """What the ranks exchanged last: `stopped`, `cancelled` or None, and whether data are late anywhere."""
        if self._group is None:  # a process alone need not wait for the next exchange
            self.begin_stop_exchange(late=bool(self._numbers[1]))
        self.close()
        word, late, _ = self._numbers.tolist()
        return WORDS[word], bool(late)

    def take_steps_to_trace(self) -> int:
        """How many steps the ranks agreed to trace since this was asked last: the same on all of them."""
        steps, self._steps = self._steps, 0
        return steps

    def close(self) -> None:
        """Wait for the exchange that `begin_stop_exchange` left under way."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._note_steps()

    def _note_steps(self) -> None:
        """Keep what was agreed until it is taken: not every exchange is read."""
        self._steps = max(self._steps, int(self._numbers[2]))


def read_stop_flag(path: Path) -> str | None:
    """What the launcher wrote into the flag, None where there is none; one that makes no sense means `stopped`."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return Word.STOPPED
    word = read_json(path).get("outcome")
    return word if word in WORDS[1:] else Word.STOPPED
