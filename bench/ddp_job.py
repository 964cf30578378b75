"""A job of several processes on this machine that trains in blocks, when it is told to: what ddp.py and scaling.py time.

The processes (ddp_worker.py) hold every side's training at once and sleep until it is its turn, so that sides, and jobs of
different sizes, can take turns within seconds.
"""

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from slipway.launch.resolve.connectivity import free_port


@dataclass(frozen=True)
class Side:
    """A training of `slipway gpt` with the options in `words`: by all processes together, or each of them `alone`."""

    words: str
    alone: bool = False
    view: bool = True  # whether gradients lie in the buckets; what Slipway does, and DistributedDataParallel does not


@dataclass(frozen=True)
class Block:
    """What one process took for a block, in seconds: in all, of CPU time with all its threads, and for each step."""

    wall: float
    cpu: float
    each: Sequence[float]


class Job:
    """The processes of a job, seen from the one that tells them what to do. To be used in a `with` statement."""

    def __init__(self, folder: Path, processes: int, sides: Mapping[str, Side]) -> None:
        """Start them, with their files in `folder`; the first question waits until each has made its trainings."""
        os.environ["OMP_NUM_THREADS"] = "1"  # which a process reads while it imports torch
        spawn = multiprocessing.get_context("spawn")
        port = free_port(0)
        self._ends: list[Any] = []
        self._processes = []
        for rank in range(processes):
            end, other = spawn.Pipe()
            self._ends.append(end)
            values = (rank, processes, port, folder, sides, other)
            self._processes.append(spawn.Process(target=begin, args=values, daemon=True))
            self._processes[-1].start()
            other.close()  # so that the end of the process is the end of the pipe

    def ask(self, question: str, *words: Any) -> list[Any]:
        """Have all processes call a method of their Worker at the same time. Returns their answers, by rank."""
        for end in self._ends:
            end.send((question, *words))
        try:
            return [end.recv() for end in self._ends]
        except EOFError:
            raise RuntimeError("a process of the job ended; what it printed says why") from None

    def __enter__(self) -> "Job":
        """The job itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the processes end."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(30)


def begin(*values: Any) -> None:
    """The life of a process; only here is torch needed."""
    from ddp_worker import work

    work(*values)


def mean(blocks: Sequence[Block], cpu: bool = False) -> float:
    """Seconds of a block, or CPU seconds, over all processes."""
    return fmean(block.cpu if cpu else block.wall for block in blocks)
