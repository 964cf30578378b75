"""Watches the workers of a launcher, whatever program they run: since when nothing moves, and where and how far each rank is."""

import math
import os
import selectors
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from slipway.launch.hangs.stack_dump import StackDump, read_stack_dump
from slipway.launch.hangs.stack_request import Found, Listener, StackRequest, activity, cpu_seconds
from slipway.process.tree import stat_fields, trees
from slipway.protocol.files import RANKS_FILE, STACKS_FILE, STACKS_WANTED, own_file, write_passing_json
from slipway.protocol.imports import Imports
from slipway.protocol.tracebacks import ProgramEnd

POLLS, EVERY = 20, (0.5, 10.0)  # polls within the limit of a hang, and the least and most seconds between two of them


class Watch:
    """The watchers of one attempt. All moments are monotonic seconds."""

    def __init__(
        self,
        ranks: Sequence[int],
        node_rank: int,
        node_dir: Path,
        limit: float,
        now: float,
        last_line: Callable[[int], str] = lambda rank: "",
        gpu_use: Callable[[int], int | None] = lambda rank: None,
        process: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`limit`: the seconds of standstill after which a job hangs, 0 to watch nothing; `last_line` of a rank's output;
        `gpu_use`: percent of the time in which a rank's GPU was in use; `process`: the rank of the launcher's only one, where
        each has its own; `proc`: where the kernel shows processes.
        """
        self._ranks = tuple(ranks)
        self._node_rank, self._limit, self._proc = node_rank, limit, proc
        names = (RANKS_FILE, STACKS_WANTED, STACKS_FILE)
        self._progress, self._request, self._answer = (own_file(node_dir, name, process) for name in names)
        self._last_line, self._gpu_use = last_line, gpu_use
        self._every = min(max(limit / POLLS, EVERY[0]), EVERY[1])
        self._still = Stillness(now, self._every)
        self._next = now if limit else math.inf
        self._cpu: dict[int, float] = {}  # of each worker's processes, when nothing moved any more
        self._seen: dict[int, Sight] = {}  # of each rank at the last poll
        self._judged: StackRequest | None = None  # for the judgement of a hang
        self._wanted: StackRequest | None = None  # for `slipway stacks`
        self._listener: Listener | None = None
        self.dumps: tuple[StackDump, ...] | None = None  # the ranks' stacks, once nothing has moved for the limit

    @property
    def still(self) -> float:
        """Seconds for which nothing moves by now."""
        return self._still.seconds

    def open(self, environ: Mapping[str, str], selector: selectors.BaseSelector) -> dict[str, str]:
        """Return the variables that workers need."""
        self._listener = Listener(self._ranks, selector)
        return self._listener.open(environ)

    @property
    def imports(self) -> Mapping[int, Imports]:
        """How the programs imported torch, by rank."""
        workers = self._listener.workers if self._listener else {}
        return {rank: workers[rank].imports for rank in self._ranks if rank in workers}

    def close(self) -> Mapping[int, ProgramEnd]:
        """Disconnect the watchers; how the programs ended that said so, by rank."""
        if self._listener is None:
            return {}
        self._listener.close()
        return self._listener.ended

    def poll(self, workers: Sequence[int], chunks: int, now: float) -> bool:
        """Look when it is time; `workers`: their process ids in the order of the ranks, `chunks` of output that came so far.

        Returns whether `dumps` is new: after each request, and when something moves again.
        """
        if self._listener is None:
            return False
        pids = {rank: workers[place] if place < len(workers) else 0 for place, rank in enumerate(self._ranks)}
        self._answer_request(self._listener, pids, now)
        if now >= self._next:
            self._next = now + self._every
            self._take(self._listener, workers, chunks, now)
            if self._still.seconds < self._limit:
                self._listener.ask("numbers")
                moved, self._judged, self.dumps = self.dumps is not None, None, None
                return moved
            self._judged = self._judged or StackRequest(self._listener, pids, now)
        if self._judged and self._judged.over(now):
            self.dumps = tuple(self._dump(rank, found) for rank, found in self._judged.found().items())
            self._judged = None
            return True
        return False

    def _dump(self, rank: int, found: Found) -> StackDump:
        cores = 0.0
        if found.pid in self._cpu and rank in self._seen and self._still.seconds:
            cores = max(0.0, self._seen[rank].cpu - self._cpu[found.pid]) / self._still.seconds
        if found.answer is not None:
            with suppress(ValueError):
                return read_stack_dump(rank, self._node_rank, found.answer, cores, found.state)
        return StackDump(rank, self._node_rank, found.state or "does not answer", cores=cores)

    def _take(self, listener: Listener, workers: Sequence[int], chunks: int, now: float) -> None:
        known = listener.workers
        below = trees(workers, self._proc)
        cpu = {pid: sum(cpu_seconds(stat_fields(one, self._proc)) for one in (pid, *below[pid])) for pid in workers}
        numbers = tuple((rank, str(worker.numbers)) for rank, worker in sorted(known.items()))
        written = tuple(activity([pid, *below[pid]], self._proc) for pid in workers)
        self._still.poll((tuple(workers), chunks, numbers, written), now)
        if not self._still.seconds:
            self._cpu = cpu
        before, self._seen = self._seen, {}
        for rank, pid in zip(self._ranks, workers, strict=False):
            done = count_done(known[rank].numbers) if rank in known else None
            self._seen[rank] = Sight(now, done, cpu[pid], self._gpu_use(rank))
        with suppress(OSError):  # a disk that is full or away
            rows = progress(before, self._seen, self._last_line)
            write_passing_json(self._progress, {"time": time.time(), "ranks": rows})

    def _answer_request(self, listener: Listener, pids: Mapping[int, int], now: float) -> None:
        """`slipway stacks` asks with a file, and is answered with one."""
        if self._wanted is None and os.path.exists(self._request):  # noqa: PTH110  # on NFS Path.exists raises ESTALE
            with suppress(OSError):
                self._request.unlink()
            self._wanted = StackRequest(listener, pids, now)
        if self._wanted and self._wanted.over(now):
            content = {str(rank): found._asdict() for rank, found in self._wanted.found().items()}
            with suppress(OSError):  # a disk that is full or away
                write_passing_json(self._answer, {"time": time.time(), "ranks": content})
            self._wanted = None


LONGEST_POLL = 5.0  # s that the time between polls counts at most, beyond the usual


class Stillness:
    """Seconds for which what is seen did not change. Pure: what was seen and the clock come in.

    Only time during which we polled counts: a container that was frozen is no hang.
    """

    def __init__(self, now: float, every: float, seen: Hashable = None) -> None:
        """`now`: monotonic seconds; `every`: usual seconds between polls; `seen`: what is there already."""
        self._seen = seen
        self._polled, self._most = now, every + LONGEST_POLL
        self.seconds = 0.0

    def poll(self, seen: Hashable, now: float) -> None:
        """Take what is seen at `now`."""
        passed, self._polled = min(now - self._polled, self._most), now
        if seen == self._seen:
            self.seconds += passed
        else:
            self._seen, self.seconds = seen, 0.0


LINE = 120  # characters of a rank's last line


class Sight(NamedTuple):
    """What was seen of a rank at `time` (monotonic seconds): collectives done (None: it has no watcher), processor seconds, and
    how many percent of the time its GPU was in use (None: unknown).
    """

    time: float
    done: int | None
    cpu: float
    gpu: int | None = None


def count_done(groups: Mapping[str, Sequence[int]] | None) -> int | None:
    """The collectives that are done, by what a watcher answered to `numbers`; None without an answer."""
    return None if groups is None else sum(max(done, 0) for _, done in groups.values())


def progress(before: Mapping[int, Sight], now: Mapping[int, Sight], last_line: Callable[[int], str]) -> dict[str, Any]:
    """A row for each rank, for `slipway status`: collectives done, per second, processor cores kept busy since `before`, percent
    of its GPU's time, and the last line printed. Pure.
    """
    return {str(rank): _row(before.get(rank), sight, last_line(rank)) for rank, sight in now.items()}


def _row(before: Sight | None, now: Sight, line: str) -> dict[str, Any]:
    passed = now.time - before.time if before else 0.0
    rate = cores = None
    if before and passed > 0:
        cores = round(max(0.0, now.cpu - before.cpu) / passed, 2)
        if now.done is not None and before.done is not None:
            rate = round(max(0, now.done - before.done) / passed, 2)
    return {"collectives": now.done, "per_second": rate, "cores": cores, "gpu": now.gpu, "line": line[:LINE]}
