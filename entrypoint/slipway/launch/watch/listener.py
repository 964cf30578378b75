"""The launcher's side of the watchers: a socket at which the workers of this node answer questions.

It has a name that is in no file system (see unix(7), "abstract"), so that nothing is left of a launcher that was killed.
"""

import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipway.launch.watch.recorder import read_answer, read_numbers
from slipway.watcher import ADDRESS

LARGEST = 32 << 20  # bytes of an answer, of which a collective takes 500
RECORDER, OLD_RECORDER, RECORDED = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "2000",
)  # collectives of a rank


class Worker:
    """A connection to a watcher. What it says is taken as somebody's program says it: bounded, and read as data."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._begun = bytearray()  # of a line, which may be a megabyte
        self.pid, self.rank = 0, -1
        self.numbers: Mapping[str, Sequence[int]] | None = None  # as told last
        self.everything: Mapping[str, Any] = {}  # the newest answer to `all`
        self.answered = 0.0  # when that came, monotonic seconds

    def take(self, chunk: bytes) -> None:
        """Take bytes that came. ValueError where they are none of a watcher's."""
        first, *more = chunk.split(b"\n")
        self._begun += first
        if len(self._begun) > LARGEST:
            raise ValueError("too long for an answer")
        for start in more:
            line, self._begun = self._begun, bytearray(start)
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("no answer")
            if self.rank < 0:
                self.pid, self.rank = int(content["pid"]), int(content["rank"])
                continue
            self.numbers = read_numbers(content["records"])
            if "threads" in content:
                self.everything, self.answered = read_answer(content), time.monotonic()


class Listener:
    """The watchers of this node's ranks, the newest of each rank."""

    def __init__(self, ranks: Iterable[int], selector: selectors.BaseSelector) -> None:
        self._ranks, self._selector = frozenset(ranks), selector
        self._socket: socket.socket | None = None
        self._workers: list[Worker] = []

    def open(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that workers need. Raises OSError."""
        name = f"slipway-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen(len(self._ranks) + 8)
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        size = environ.get(RECORDER) or environ.get(OLD_RECORDER) or RECORDED
        return {ADDRESS: name, RECORDER: size}

    def ask(self, question: str) -> None:
        """Ask all: `numbers` or `all`. Whoever does not read has not answered the question before."""
        for worker in self._workers:
            with suppress(OSError):
                worker.link.send(f"{question}\n".encode())

    @property
    def workers(self) -> dict[int, Worker]:
        """Those that are there, by rank; of several processes of a rank the newest."""
        return {worker.rank: worker for worker in self._workers if worker.rank in self._ranks}

    def close(self) -> None:
        """Hang up."""
        for worker in list(self._workers):
            self._drop(worker)
        if self._socket:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._socket)
            self._socket.close()

    def _accept(self) -> None:
        assert self._socket is not None
        with suppress(OSError):
            link, _ = self._socket.accept()
            if peer_user(link) != os.geteuid():  # such a name has no permissions
                link.close()
                return
            link.setblocking(False)
            worker = Worker(link)
            self._workers.append(worker)
            self._selector.register(link, selectors.EVENT_READ, lambda: self._read(worker))

    def _read(self, worker: Worker) -> None:
        try:
            chunk = worker.link.recv(1 << 16)
            worker.take(chunk)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            chunk = b""
        if not chunk:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        with suppress(KeyError, ValueError):
            self._selector.unregister(worker.link)
        worker.link.close()


def peer_user(link: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket (SO_PEERCRED: three ints of process, user, group)."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def activity(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[tuple[int, int], ...]:
    """How many bytes each process has written so far, by /proc/PID/io: to files, pipes and terminals."""
    found = []
    for pid in pids:
        with suppress(OSError, ValueError, StopIteration):
            with open(f"{proc}/{pid}/io") as file:  # noqa: PTH123  # quick: it is asked of many, often
                line = next(line for line in file if line.startswith("wchar:"))
            found.append((pid, int(line.split()[1])))
    return tuple(found)


def cpu_seconds(fields: list[str]) -> float:
    """Processor seconds of a process by the fields of /proc/PID/stat from the third on; 0 where it is gone."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0
