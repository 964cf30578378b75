"""Watches the workers of this node, whatever program they run: since when nothing moves, and where each stands."""

import math
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.process_tree import STATES, stat_fields, state_of, trees
from slipway.launch.watch.listener import Listener, Worker, activity, cpu_seconds
from slipway.launch.watch.progress import Sight, count_done, progress
from slipway.launch.watch.standing import Standing, read_standing
from slipway.launch.watch.stillness import Stillness
from slipway.protocol.files import RANKS_FILE, STACKS_FILE, STACKS_WANTED, write_json

LOOKS, EVERY = 20, (0.5, 10.0)  # looks within the limit of a hang, and the seconds between two of them
ANSWER_SECONDS = 5.0  # that a watcher has for an answer
BUSY = 0.05  # of a core: who works so much, beside others perhaps, may be waited for twice as long


class Watch:
    """The watchers of one attempt. All moments are monotonic seconds."""

    def __init__(
        self,
        ranks: Sequence[int],
        world_size: int,
        node_rank: int,
        node_dir: Path,
        limit: float,
        now: float,
        last_line: Callable[[int], str] = lambda rank: "",
    ) -> None:
        """`limit`: the seconds after which what stands still is a hang, 0 where nobody looks; `last_line` of a rank's output."""
        self._ranks, self._world_size = tuple(ranks), world_size
        self._node_rank, self._node_dir, self._limit, self._last_line = node_rank, node_dir, limit, last_line
        self._every = min(max(limit / LOOKS, EVERY[0]), EVERY[1])
        self._still = Stillness(now, self._every)
        self._next, self._asked = now if limit else math.inf, 0.0
        self._cpu: dict[int, float] = {}  # of each worker's processes, when the node came to a stand
        self._seen: dict[int, Sight] = {}  # of each rank at the last look
        self._wanted = 0.0  # when somebody asked for stacks
        self._listener: Listener | None = None
        self.stands: tuple[Standing, ...] | None = None  # where the ranks stand, once nothing has moved for the limit

    @property
    def still(self) -> float:
        """Seconds for which nothing moves by now."""
        return self._still.seconds

    def open(self, environ: Mapping[str, str], selector: selectors.BaseSelector) -> dict[str, str]:
        """Return the variables that workers need."""
        self._listener = Listener(self._ranks, selector)
        return self._listener.open(environ)

    def close(self) -> None:
        """Let the watchers go."""
        if self._listener:
            self._listener.close()

    def look(self, workers: Sequence[int], chunks: int, now: float) -> bool:
        """Look when it is time; `workers`: their process ids in the order of the ranks, `chunks` of output that came so far.

        Returns whether `stands` is new: each time that it was asked for again, and when something moves.
        """
        if self._listener is None:
            return False
        self._answer_request(workers, now)
        if now >= self._next:
            self._next = now + self._every
            self._take(workers, chunks, now)
            if self._still.seconds >= self._limit:
                self._asked = self._asked or now
                self._listener.ask("all")
            else:
                self._listener.ask("numbers")
                moved, self._asked, self.stands = self.stands is not None, 0.0, None
                return moved
        known = self._listener.workers
        if self._asked and (
            now - self._asked >= ANSWER_SECONDS or all(one.answered >= self._asked for one in known.values())
        ):
            self.stands = self._standings(workers, since=self._asked)
            self._asked = 0.0
            return True
        return False

    def waits_longer(self, standings: Sequence[Standing], culprits: Sequence[int]) -> bool:
        """Whether a culprit works, and may be waited for longer."""
        busy = any(one.cores >= BUSY for one in standings if one.rank in culprits)
        return busy and self._still.seconds < 2 * self._limit

    def _standings(self, workers: Sequence[int], since: float) -> tuple[Standing, ...]:
        """Where the ranks stand, by what they answered `since` a moment."""
        assert self._listener is not None
        known = self._listener.workers
        return tuple(
            self._standing(rank, workers[place] if place < len(workers) else 0, known.get(rank), since)
            for place, rank in enumerate(self._ranks)
        )

    def _standing(self, rank: int, pid: int, worker: Worker | None, since: float) -> Standing:
        letter = state_of(pid) if pid else ""
        cores = 0.0
        if pid in self._cpu and rank in self._seen and self._still.seconds:
            cores = max(0.0, self._seen[rank].cpu - self._cpu[pid]) / self._still.seconds
        if not letter or letter in "ZX":
            return Standing(rank, self._node_rank, "has left")
        if letter in STATES:
            return Standing(rank, self._node_rank, f"is {STATES[letter]}", cores=cores)
        if worker is None:
            return Standing(rank, self._node_rank, "has no watcher", cores=cores)
        if worker.answered < since:
            return Standing(rank, self._node_rank, "does not answer", cores=cores)
        try:
            return read_standing(rank, self._node_rank, worker.everything, self._world_size, cores)
        except ValueError:
            return Standing(rank, self._node_rank, "does not answer", cores=cores)

    def _take(self, workers: Sequence[int], chunks: int, now: float) -> None:
        assert self._listener is not None
        known = self._listener.workers
        below = trees(workers)
        cpu = {pid: sum(cpu_seconds(stat_fields(one)) for one in (pid, *below[pid])) for pid in workers}
        numbers = tuple((rank, str(worker.numbers)) for rank, worker in sorted(known.items()))
        written = tuple(activity([pid, *below[pid]]) for pid in workers)
        self._still.look((tuple(workers), chunks, numbers, written), now)
        if not self._still.seconds:
            self._cpu = cpu
        before, self._seen = (
            self._seen,
            {
                rank: Sight(now, _done(known.get(rank)), cpu[pid])
                for rank, pid in zip(self._ranks, workers, strict=False)
            },
        )
        with suppress(OSError):  # a disk that is full or away
            rows = progress(before, self._seen, self._last_line)
            write_json(self._node_dir / RANKS_FILE, {"time": time.time(), "ranks": rows})

    def _answer_request(self, workers: Sequence[int], now: float) -> None:
        """`slipway stacks` asks with a file, and is answered with one."""
        wanted = self._node_dir / STACKS_WANTED
        assert self._listener is not None
        if not self._wanted and os.path.exists(wanted):  # noqa: PTH110  # Path.exists raises ESTALE
            with suppress(OSError):
                wanted.unlink()
            self._wanted = now
            self._listener.ask("all")
        known = self._listener.workers
        answered = all(worker.answered >= self._wanted for worker in known.values())
        if self._wanted and (answered or now - self._wanted >= ANSWER_SECONDS):
            rows = {str(row.rank): row for row in self._standings(workers, self._wanted)}
            content = {
                rank: {"pid": workers[place] if place < len(workers) else None, "state": rows[rank].state}
                | ({"answer": known[int(rank)].everything} if not rows[rank].state else {})
                for place, rank in enumerate(rows)
            }
            with suppress(OSError):  # a disk that is full or away
                write_json(self._node_dir / STACKS_FILE, {"time": time.time(), "ranks": content})
            self._wanted = 0.0


def _done(worker: Worker | None) -> int | None:
    """How many collectives a rank has done; None where nobody says."""
    with suppress(ValueError, TypeError, OverflowError):
        return count_done(worker.numbers) if worker else None
    return None
