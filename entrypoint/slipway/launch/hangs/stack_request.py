"""One question to all ranks of a node: where are you? Their watchers answer at a socket of the launcher's; processes that do not
answer are examined from outside, by py-spy.
"""

import json
import os
import secrets
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from slipway.launch.hangs.flight_recorder import SIZE, buffer_size, read_answer, read_numbers
from slipway.process.tree import STATES, state_of
from slipway.process.watcher import ADDRESS
from slipway.protocol.imports import Imports
from slipway.protocol.tracebacks import ProgramEnd, read_ended

LARGEST = 32 << 20  # bytes of an answer, of which a collective takes 500


class WatchedWorker:
    """A connection to a watcher. Its answers come from a user's program, so they are bounded, and read as data."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._begun = bytearray()  # of a line, which may be a megabyte
        self.pid, self.rank = 0, -1
        self.numbers: Mapping[str, Sequence[int]] | None = None  # as answered last
        self.everything: Mapping[str, Any] = {}  # the newest answer to `all`
        self.answered = 0.0  # when that came, monotonic seconds
        self.ended: ProgramEnd | None = None  # how the program ends, once it says so
        self.imports = Imports()  # how it imported torch

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
            if "uncaught" in content:
                self.ended = read_ended(content["uncaught"])
                continue
            if "imports" in content:
                self.imports = self.imports.take(content["imports"])
                continue
            self.numbers = read_numbers(content["records"])
            if "threads" in content:
                self.everything, self.answered = read_answer(content), time.monotonic()


class Listener:
    """The socket for the watchers of this node's ranks; the newest watcher of each rank counts.

    Its name is in no file system (unix(7), "abstract"), so that a launcher that was killed leaves nothing behind.
    """

    def __init__(self, ranks: Iterable[int], selector: selectors.BaseSelector) -> None:
        self._ranks, self._selector = frozenset(ranks), selector
        self._socket: socket.socket | None = None
        self._workers: list[WatchedWorker] = []
        self.ended: dict[int, ProgramEnd] = {}  # how the programs ended that said so, by rank

    def open(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that workers need. Raises OSError."""
        name = f"slipway-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen(len(self._ranks) + 8)
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        return {ADDRESS: name, SIZE: buffer_size(environ)}

    def ask(self, question: str) -> None:
        """Ask all: `numbers` or `all`. One that does not read has not answered the question before, or is gone."""
        for worker in self._workers:
            with suppress(OSError):
                worker.link.send(f"{question}\n".encode())

    @property
    def workers(self) -> dict[int, WatchedWorker]:
        """Those that are there, by rank; of several processes of a rank the newest."""
        return {worker.rank: worker for worker in self._workers if worker.rank in self._ranks}

    def close(self) -> None:
        """Take what the workers said last, and close all connections and the socket."""
        while self._socket and self._accept():
            pass
        for worker in list(self._workers):
            while worker in self._workers and self._read(worker):
                pass
            if worker in self._workers:
                self._drop(worker)
        if self._socket:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._socket)
            self._socket.close()

    def _accept(self) -> bool:
        """Take a connection; whether there was one."""
        assert self._socket is not None
        try:
            link, _ = self._socket.accept()
        except OSError:
            return False
        if peer_user(link) != os.geteuid():  # such a name has no permissions
            link.close()
            return True
        link.setblocking(False)
        worker = WatchedWorker(link)
        self._workers.append(worker)
        self._selector.register(link, selectors.EVENT_READ, lambda: self._read(worker))
        return True

    def _read(self, worker: WatchedWorker) -> bool:
        """Read what a worker says; whether there was anything."""
        try:
            chunk = worker.link.recv(1 << 16)
            worker.take(chunk)
        except BlockingIOError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            chunk = b""
        if worker.ended and worker.rank in self._ranks:
            self.ended[worker.rank] = worker.ended
        if not chunk:
            self._drop(worker)
        return bool(chunk)

    def _drop(self, worker: WatchedWorker) -> None:
        self._workers.remove(worker)
        with suppress(KeyError, ValueError):
            self._selector.unregister(worker.link)
        worker.link.close()


def peer_user(link: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket (SO_PEERCRED: three ints of process, user, group)."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


OUTSIDE_SECONDS = 8.0  # that py-spy may take; milliseconds, usually
COMMAND = ("dump", "--nonblocking", "--json", "--full-filenames", "--pid")


class PySpy:
    """One look at some processes from outside: at those that cannot answer themselves, or have no watcher.

    py-spy reads a process's memory and does not stop it (--nonblocking), so nothing happens to it. Each look has a thread of its
    own: a process that waits for a disk may block its reader, too.
    """

    def __init__(self, pids: Iterable[int], program: str | None = None) -> None:
        """`program` is py-spy; by default that of our own environment, or else the one on PATH."""
        self._program = program or find_program()
        self.answers: dict[int, Mapping[str, Any]] = {}  # by process, in the form of flight_recorder.py
        self._threads = [threading.Thread(target=self._dump, args=(pid,), daemon=True) for pid in pids if self._program]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether all is known that will be."""
        return not any(thread.is_alive() for thread in self._threads)

    def _dump(self, pid: int) -> None:
        try:
            done = subprocess.run(
                [str(self._program), *COMMAND, str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=OUTSIDE_SECONDS,
                check=True,
            )
            self.answers[pid] = read_dump(json.loads(done.stdout), pid)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, RecursionError):
            return  # no Python, no permission, nothing to read


def find_program() -> str | None:
    """Where py-spy is, None without it."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("py-spy", path=folders)


def read_dump(threads: Any, pid: int) -> dict[str, Any]:
    """What py-spy prints of a process, in the form of a watcher's answer. KeyError or TypeError where that makes no sense."""
    rows = [
        [
            thread.get("thread_name") or "",
            thread["os_thread_id"] == pid,
            [[frame["filename"], frame["line"], frame["name"]] for frame in thread["frames"]],
        ]
        for thread in threads
    ]
    return {"begun": [], "last": {}, "members": {}, "threads": rows}


ANSWER_SECONDS = 5.0  # that watchers have for an answer; then py-spy looks at those that are silent
DISK = f"is {STATES['D']}"


class Found(NamedTuple):
    """What is known of a rank's process: what is odd about it, as people say it, and its answer or what py-spy saw."""

    pid: int
    state: str
    answer: Mapping[str, Any] | None


class StackRequest:
    """The question, and what is known so far. All moments are monotonic seconds."""

    def __init__(
        self, listener: Listener, workers: Mapping[int, int], now: float, inspect: Callable[..., PySpy] = PySpy
    ) -> None:
        """`workers`: process ids by rank, 0 where there is none; `inspect` is for tests."""
        self._listener, self._workers, self._asked, self._inspect = listener, workers, now, inspect
        self._outside: PySpy | None = None
        self._outside_since = 0.0
        listener.ask("all")

    def over(self, now: float) -> bool:
        """Whether all is known that will be."""
        if self._outside is None:
            asked = [rank for rank in self._workers if rank in self._listener.workers]
            if now - self._asked < ANSWER_SECONDS and not all(map(self._answered, asked)):
                return False
            self._outside, self._outside_since = self._inspect(self._silent()), now
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
        worker: WatchedWorker = self._listener.workers[rank]
        return worker.answered >= self._asked

    def _silent(self) -> list[int]:
        """The processes to look at from outside. One that waits for a disk would block the reader of its memory, too."""
        states = {pid: self._state(rank, pid) for rank, pid in self._workers.items()}
        return [pid for pid, state in states.items() if state and state not in ("has left", DISK)]


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
