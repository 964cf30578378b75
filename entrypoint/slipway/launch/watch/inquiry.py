"""One question to all ranks of a node: where do you stand? To their watchers, and then from outside for those that are silent."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slipway.launch.process_tree import STATES, state_of
from slipway.launch.watch.listener import Listener, Worker
from slipway.launch.watch.outside import SECONDS as OUTSIDE_SECONDS
from slipway.launch.watch.outside import Outside

ANSWER_SECONDS = 5.0  # that a watcher has for an answer
DISK = f"is {STATES['D']}"


class Found(NamedTuple):
    """What is known of a rank's process: what is odd about it, as people say it, and its answer or what py-spy saw."""

    pid: int
    state: str
    answer: Mapping[str, Any] | None


class Inquiry:
    """All moments are monotonic seconds."""

    def __init__(
        self, listener: Listener, workers: Mapping[int, int], now: float, look: Callable[..., Outside] = Outside
    ) -> None:
        """`workers`: process ids by rank, 0 where there is none; `look` is for tests."""
        self._listener, self._workers, self._asked, self._look = listener, workers, now, look
        self._outside: Outside | None = None
        self._outside_since = 0.0
        listener.ask("all")

    def over(self, now: float) -> bool:
        """Whether all is known that will be."""
        if self._outside is None:
            asked = [rank for rank in self._workers if rank in self._listener.workers]
            if now - self._asked < ANSWER_SECONDS and not all(map(self._answered, asked)):
                return False
            self._outside, self._outside_since = self._look(self._silent()), now
        return self._outside.over or now - self._outside_since >= OUTSIDE_SECONDS

    def found(self) -> dict[int, Found]:
        """What is known, by rank."""
        return {rank: self._found(rank, pid) for rank, pid in self._workers.items()}

    def _found(self, rank: int, pid: int) -> Found:
        state = self._state(rank, pid)
        seen = self._outside.answers.get(pid) if self._outside else None
        return Found(pid, state, seen if state else self._listener.workers[rank].everything)

    def _state(self, rank: int, pid: int) -> str:
        letter, worker = state_of(pid) if pid else "", self._listener.workers.get(rank)
        if not letter or letter in "ZX":
            return "has left"
        if letter in STATES:
            return f"is {STATES[letter]}"
        if worker is None:
            return "has no watcher"
        return "" if self._answered(rank) else "does not answer"

    def _answered(self, rank: int) -> bool:
        worker: Worker = self._listener.workers[rank]
        return worker.answered >= self._asked

    def _silent(self) -> list[int]:
        """The processes to look at from outside. One that waits for a disk would make whoever reads its memory wait, too."""
        states = {pid: self._state(rank, pid) for rank, pid in self._workers.items()}
        return [pid for pid, state in states.items() if state and state not in ("has left", DISK)]
