"""Processes that work through pieces, each one at a time.

They are programs of their own rather than multiprocessing's: those would load the training's main module, torch and
all, again, and stay behind when who started them is killed. These end once their stdin does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from slipway.protocol.mistake import ConfigurationError


class Worker:
    """One process that tokenises."""

    def __init__(self, work: Path) -> None:
        """Start it on the plan in `work`."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slipway.train.text.tokens.piece", str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # there are as many processes as are wanted
            start_new_session=True,  # Ctrl-C is for who started us
        )

    def __enter__(self) -> Self:
        """The worker."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it, with what it does unfinished."""
        self._process.kill()
        self._process.communicate()

    def make(self, number: int, tick: Callable[[], None]) -> None:
        """Make a piece, with a `tick` whenever it got on. Raises what went wrong: ConfigurationError or OSError."""
        answer = self._ask(f"{number}\n")
        while answer == {"more": True}:
            tick()
            answer = self._ask("")
        if "mistake" in answer:
            raise ConfigurationError(answer["mistake"])
        if answer:
            raise OSError(answer["errno"], answer["strerror"], answer["filename"])

    def _ask(self, words: str) -> dict[str, Any]:
        """Its next answer. Raises ConfigurationError where it ended."""
        sent, answered = self._process.stdin, self._process.stdout
        line = ""
        if sent and answered:
            with suppress(BrokenPipeError):
                sent.write(words)
                sent.flush()
                line = answered.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        if code >= 0:
            raise RuntimeError(f"a process that tokenises ended with {code}; what it printed says why")
        raise ConfigurationError(
            f"A process that tokenises was killed by signal {-code}. Where memory is short fewer of them do: "
            "slipway data prepare --processes N"
        )


def work_through(
    work: Path, todo: Sequence[int], processes: int, done: Callable[[int], None], tick: Callable[[], None]
) -> None:
    """Make all pieces in `todo`; `done` is called for each, in this thread. Raises what went wrong first."""
    free: SimpleQueue[Worker] = SimpleQueue()

    def make(number: int) -> None:
        worker = free.get()
        try:
            worker.make(number, tick)
        finally:
            free.put(worker)  # another thread may wait for it, even where this one failed

    count = min(processes, len(todo))
    with ThreadPoolExecutor(max(1, count)) as pool, ExitStack() as crew:
        for _ in range(count):
            free.put(crew.enter_context(Worker(work)))
        pieces = {pool.submit(make, number): number for number in todo}
        try:
            for piece in as_completed(pieces):
                piece.result()
                done(pieces[piece])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # and with the crew gone the threads end as well
