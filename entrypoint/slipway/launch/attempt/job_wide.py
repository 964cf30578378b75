"""What a launcher has from its first attempt to its last, and each attempt uses: buffers for snapshots in memory, and a process
that the next attempt is forked from.
"""

import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.bookkeeping import Milestones
from slipway.launch.verdict.verdict import Outcome
from slipway.process.tree import FILES, LENGTH, Forked, OwnProcesses, send_signal, state_of
from slipway.process.watcher import ADDRESS, STANDBY
from slipway.protocol.imports import Imports, lines
from slipway.protocol.memory import BUFFERS, VARIABLE, newest_in


class SnapshotMemory:
    """The buffers for snapshots in memory, which this launcher holds for its node and which outlive the workers; empty at first.

    They count in the memory of the container or job, not in /dev/shm, and are freed when this process ends. Workers open them
    through /proc, so neither torchrun nor whatever else starts workers has to pass descriptors on.
    """

    def __init__(self, job: Job) -> None:
        """Make the buffers, where there may be another attempt that could use what is in them."""
        self._buffers: list[int] = []
        workload = job.plan.workload
        if workload.resumes and not workload.spawned and not job.plan.topology.process and job.restarts:
            self._make(job.plan.topology.processes_per_node)

    def _make(self, processes: int) -> None:
        try:
            for number in range(BUFFERS * processes):
                self._buffers.append(os.memfd_create(f"slipway-memory-{number + 1}"))
        except OSError:  # a sandbox without; there is the disk
            self.close()

    @property
    def variables(self) -> dict[str, str]:
        """Where the workers find the buffers."""
        paths = [f"/proc/{os.getpid()}/fd/{buffer}" for buffer in self._buffers]
        return {VARIABLE: " ".join(paths)} if paths else {}

    @property
    def version(self) -> tuple[int, int]:
        """Attempt and step of the newest snapshot in them from which workers would resume; -1 twice without one."""
        newest = newest_in(self._buffers)
        return (newest.attempt, newest.step) if newest else (-1, -1)

    def close(self) -> None:
        """Free the memory."""
        while self._buffers:
            os.close(self._buffers.pop())


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
        """An agent as `words` would start it, our own child; None where it has to be started.

        `files`: what is open there, by number, as numbers of ours.
        """
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


@dataclass(frozen=True)
class JobWide:
    """What an attempt has of those before, and leaves to those after. `memory`: what outlives the workers; `standby`: what the
    next attempt is forked from, `script` together with the workers of a script; `own`: what this launcher started, as opposed to
    what was below it before; `look_on` is called at every look, and `on_hang` with the text of a hang. `silence`: the seconds
    without a sign of life after which the other nodes count this one as lost; `previous`: what ended the attempt before;
    `reached`: the highest step of all before.
    """

    memory: SnapshotMemory | None = None
    standby: WarmStandby | None = None
    script: WarmStandby | None = None
    own: OwnProcesses | None = None
    look_on: Callable[[Milestones], None] = lambda milestones: None
    on_hang: Callable[[str], None] = lambda hang: None
    silence: float = math.inf
    previous: Outcome | None = None
    reached: int = 0


ALONE = JobWide()  # an attempt that nothing outlasts
