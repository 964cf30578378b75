"""The process that the next attempt is forked from: the launcher's side (the other one is in process/standby.py)."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from slipway.process.tree import FILES, LENGTH, Forked, OwnProcesses, send_signal, state_of
from slipway.process.watcher import ADDRESS, STANDBY
from slipway.protocol.imports import Imports, lines

STOPPED = ("T", "t")  # by a signal, by a debugger (proc_pid_stat(5))
ANSWER = 10.0  # s that it has to fork an agent; a machine under load may be in the middle of its imports
LOADING = 30.0  # s, where it may be importing: a cold start has to import more
# Variables that differ from attempt to attempt, or with the terminal's size, and are read after the fork.
VARYING = ("SLIPWAY_", "TORCH_FR_", "TORCH_NCCL_", "COLUMNS", "LINES")


class WarmStandby:
    """A process with torch imported, from which the next attempt is forked, for a `with` block. `pid`: its id, None without one.

    The first attempt's agent leaves it behind (slipway/process/warm.py). Where it is gone, frozen or does not answer, the attempt
    starts as the first one did, and leaves a new one.
    """

    def __init__(self, own: OwnProcesses, *, wanted: bool) -> None:
        """Not `wanted`: every attempt starts from nothing."""
        self._own = own
        self.pid: int | None = None
        self.why = ""  # why a standby is of no use
        self._preparing = self._prepared = False
        self._wanted, self._loads = wanted, False
        self._link: socket.socket | None = None
        self._environ: dict[str, str] = {}

    def __enter__(self) -> "WarmStandby":
        """Nothing is started by this either."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.poll()
        if self.pid is not None:
            self._end()
        self._forget()

    def poll(self) -> None:
        """Notice its start and its end. One that was stopped by a signal is ended: it would outlive this launcher."""
        with suppress(BlockingIOError):
            self._listen(0.0)
        if self.pid is not None and state_of(self.pid) in STOPPED:
            send_signal([self.pid], signal.SIGKILL)
            self._forget()

    def load(self, module: str) -> None:
        """Let it import what the next attempt needs, once: DistributedDataParallel's part of torch and, of ours, the workload."""
        self.poll()
        if self._link and self.pid is not None and not self._loads:
            self._loads = True
            self._send({"load": module})

    def start_script(self, command: Sequence[str], environ: Mapping[str, str], imports: Imports) -> None:
        """Start a process as a worker of a script would be started, to wait with what the script imported, and become the next
        attempt's agent and workers (process/script_standby.py).
        """
        self._link, theirs = socket.socketpair()
        self._environ = lasting_variables(environ)
        with theirs, TemporaryFile() as learned, TemporaryFile() as said:
            learned.write(lines(imports).encode(errors="surrogateescape"))
            learned.seek(0)
            words = f"{theirs.fileno()},{os.getpid()},{learned.fileno()}"
            told = {**environ, ADDRESS: f"{STANDBY}{words}", "LOCAL_RANK": "0"}
            process = subprocess.Popen(
                command,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                pass_fds=(theirs.fileno(), learned.fileno()),
            )
        process.returncode = 0  # it is waited for with everything else that ends (tree.py)
        self.pid, self._preparing = process.pid, True
        self.why = "the process that had imported torch for it was not ready, or has ended"

    def prepare(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it by this command, with the numbers of this process and of its link, before there was an attempt: once."""
        if self._prepared or self._link or (theirs := self.offer(environ)) is None:
            return
        self._prepared = True
        words = (*command, str(os.getpid()), str(theirs.fileno()))
        with theirs:
            process = subprocess.Popen(
                words,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        process.returncode = 0  # it is waited for with everything else that ends (tree.py)
        self.pid, self._preparing = process.pid, True

    @property
    def waits(self) -> bool:
        """Whether it is there and has imported everything."""
        return self.pid is not None and not self._preparing

    def offer(self, environ: Mapping[str, str]) -> socket.socket | None:
        """A link for an agent that starts with these variables, and will leave a new one; None where none is wanted."""
        self._forget()
        if not self._wanted:
            return None
        self._link, theirs = socket.socketpair()
        self._environ = lasting_variables(environ)
        return theirs

    def retire(self) -> None:
        """Let it end: another one does its work."""
        if self.pid is not None:
            self._forget()

    def fork(self, words: tuple[str, ...], environ: Mapping[str, str], files: Mapping[int, int]) -> Forked | None:
        """An agent as `words` would start it, our own child; None if it must be started. `files`: by their numbers there."""
        self.poll()
        if self._preparing:  # nothing else runs on this node, and it has done a part of the work
            self._listen(LOADING)
        if self._link is None or self.pid is None:
            return None
        asked = lasting_variables(environ)
        if changed := [name for name in {**asked, **self._environ} if asked.get(name) != self._environ.get(name)]:
            self.why = f"{min(changed)} is not what it was"
        elif len(files) <= FILES:
            request = {"words": words, "environ": dict(environ), "files": [*files]}
            if self._send(request, [*files.values()]) and (pid := self._read(LOADING if self._loads else ANSWER)):
                return Forked(pid)
        self._end()
        return None

    def _send(self, request: Mapping[str, object], files: list[int] | None = None) -> bool:
        """Whether it could be sent."""
        assert self._link
        text = json.dumps(request).encode()
        self._link.settimeout(ANSWER)
        with suppress(OSError):
            # Its length comes first: it may be read only when the next request has been sent, too.
            socket.send_fds(self._link, [len(text).to_bytes(LENGTH, "big")], files or [])
            self._link.sendall(text)
            return True
        return False

    def _listen(self, seconds: float) -> None:
        """Take what it says without being asked: that it is there, or why it is of no use. BlockingIOError without time."""
        if self._link is None:
            return
        if said := self._read(seconds):
            self.pid, self._preparing = said, False
        else:
            self._forget()

    def _read(self, seconds: float) -> int:
        """A process id that it sends within so many seconds; 0 where none comes or it is gone. BlockingIOError without time."""
        assert self._link
        self._link.settimeout(seconds)
        with suppress(TimeoutError, ConnectionError, ValueError):
            pid, _, why = self._link.recv(4096).decode(errors="replace").partition(" ")
            self.why = why.strip() or self.why
            return int(pid or 0)
        return 0

    def _end(self) -> None:
        """End it, and what it may have forked too late. Between two attempts we have nothing else."""
        self._own.end()
        self._forget()

    def _forget(self) -> None:
        if self._link:
            self._link.close()
        self._link, self.pid, self._loads, self._preparing = None, None, False, False


def lasting_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read when they are loaded, as far as anybody knows."""
    return {name: value for name, value in environ.items() if not name.startswith(VARYING)}
