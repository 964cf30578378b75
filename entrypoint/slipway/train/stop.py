"""The stop flag: a file that the launcher writes, and the step at which all ranks agree to have seen it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

WORDS = (None, "stopped", "cancelled")  # by the number that the ranks exchange; the larger one wins


class StopFlag:
    """Agreement among all ranks on whether to stop, one step late, so that no step waits for it."""

    def __init__(self, path: Path | None, group: dist.ProcessGroup | None) -> None:
        """Look for the file `path` (None on ranks that leave it to others) and agree over the gloo `group`."""
        self._path = path
        self._group = group
        self._number = torch.zeros(1, dtype=torch.int64)
        self._work: dist.Work | None = None

    def agreed(self) -> str | None:
        """What the ranks agreed on in the call before this one: `stopped`, `cancelled` or None, the same on all."""
        self.close()
        answer = WORDS[int(self._number)]
        self._number = torch.tensor([WORDS.index(read_stop_flag(self._path) if self._path else None)])
        if self._group is None:
            return WORDS[int(self._number)]
        self._work = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return answer

    def close(self) -> None:
        """Wait for the exchange that `agreed` left under way."""
        if self._work is not None:
            self._work.wait()
            self._work = None


def read_stop_flag(path: Path) -> str | None:
    """What the launcher wrote into the flag, None where there is none; one that makes no sense means `stopped`."""
    try:
        word = json.loads(path.read_text())["outcome"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "stopped"
    return word if word in WORDS else "stopped"
