"""What the next attempt is forked from: a process with torch imported, which the first attempt's agent left behind
(slipway/parked.py). Where it is gone, frozen or does not answer, the attempt starts as the first one did, and leaves a new one.
"""

import json
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress

from slipway.forked import FILES, Forked
from slipway.launch.own_processes import OwnProcesses
from slipway.launch.process_tree import send_signal, state_of

STOPPED = ("T", "t")  # by a signal, by a debugger (proc_pid_stat(5))
ANSWER = 10.0  # s that it has to fork an agent; a machine under load may be in the middle of its imports
# Variables that differ from attempt to attempt, or with the terminal's size, and are read after the fork.
VARYING = ("SLIPWAY_", "TORCH_FR_", "TORCH_NCCL_", "COLUMNS", "LINES")


class Spare:
    """The process, from the launcher's side, for a `with` block. `pid`: its process id, None while there is none."""

    def __init__(self, own: OwnProcesses, *, wanted: bool) -> None:
        """Not `wanted`: every attempt starts from nothing."""
        self._own = own
        self.pid: int | None = None
        self._wanted, self._loads = wanted, False
        self._link: socket.socket | None = None
        self._environ: dict[str, str] = {}

    def __enter__(self) -> "Spare":
        """Nothing is started by this either."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.look()
        if self.pid is not None:
            self._end()
        self._forget()

    def look(self) -> None:
        """Take note of its begin and of its end. One that somebody stopped is ended: it would stay so beyond our own end."""
        if self._link:
            with suppress(BlockingIOError):
                if said := self._read(0.0):
                    self.pid = said
                else:
                    self._forget()
        if self.pid is not None and state_of(self.pid) in STOPPED:
            send_signal([self.pid], signal.SIGKILL)
            self._forget()

    def load(self, module: str) -> None:
        """Let it import what the next attempt needs: DistributedDataParallel's part of torch and, of ours, the workload. Once."""
        self.look()
        if self._link and self.pid is not None and not self._loads:
            self._loads = True
            self._send({"load": module})

    def offer(self, environ: Mapping[str, str]) -> socket.socket | None:
        """A link for an agent that starts with these variables, and will leave a new one; None where none is wanted."""
        self._forget()
        if not self._wanted:
            return None
        self._link, theirs = socket.socketpair()
        self._environ = lasting(environ)
        return theirs

    def fork(self, words: tuple[str, ...], environ: Mapping[str, str], files: Mapping[int, int]) -> Forked | None:
        """An agent as `words` would start it, our own child; None where it has to be started.

        `files`: what is open there, by number, as numbers of ours.
        """
        self.look()
        if self._link is None or self.pid is None:
            return None
        if lasting(environ) == self._environ and len(files) <= FILES:
            request = {"words": words, "environ": dict(environ), "files": [*files]}
            if self._send(request, [*files.values()]) and (pid := self._read(ANSWER)):
                return Forked(pid)
        self._end()
        return None

    def _send(self, request: Mapping[str, object], files: list[int] | None = None) -> bool:
        """Whether it could be sent."""
        assert self._link
        text = f"{json.dumps(request)}\n".encode()
        self._link.settimeout(ANSWER)
        with suppress(OSError):
            socket.send_fds(self._link, [text[:1]], files or [])
            self._link.sendall(text[1:])
            return True
        return False

    def _read(self, seconds: float) -> int:
        """A process id that it says within so many seconds; 0 where it is gone or says nothing. BlockingIOError without time."""
        assert self._link
        self._link.settimeout(seconds)
        with suppress(TimeoutError, ConnectionError, ValueError):
            return int(self._link.recv(64) or 0)
        return 0

    def _end(self) -> None:
        """End it, and what it may have forked too late. Between two attempts we have nothing else."""
        self._own.end()
        self._forget()

    def _forget(self) -> None:
        if self._link:
            self._link.close()
        self._link, self.pid, self._loads = None, None, False


def lasting(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read when they are loaded, as far as anybody knows."""
    return {name: value for name, value in environ.items() if not name.startswith(VARYING)}
