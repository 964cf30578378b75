"""Which process holds a node's folder in a run directory: a launcher, or a script that trains without one. One at a time, also
on file systems that several hosts share.

It keeps `launcher.json` in the folder and touches it every second. Locks are no use: flock does nothing on
Lustre, GPFS and some NFS. Whether a holder is alive is known at once in the same process namespace; from
anywhere else its file is watched for change, since clocks differ and process ids repeat.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slipway.process.tree import start_ticks
from slipway.protocol.decoding import decode_known
from slipway.protocol.files import held_folder, open_run_file, read_json
from slipway.protocol.printable import utc

TOUCH = 1.0  # s between two signs of life
POLL = TOUCH / 4  # s between polls for a heartbeat
STILL = 15.0  # s without one after which a holder that cannot be seen is dead; a busy disk delays them by seconds


class Holder(NamedTuple):
    """`launcher.json`: where a process runs, its id with the start in clock ticks, and since when it holds a node's folder
    (Unix seconds). `job`: the nonce of the job of several nodes that a launcher takes part in. `script`: the command line of one
    that is no launcher, without secrets.
    """

    host: str
    pid: int
    space: str  # boot and process namespace; within one, pid and start identify a process for certain
    started: int
    since: float
    token: str
    job: str = ""
    script: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """How people read it."""
        what = f"`{shlex.join(self.script)}`" if self.script else "the launcher"
        return f"{what} with process id {self.pid} on {self.host}, since {utc(self.since)}"


def read_holder(lock: Path) -> Holder | None:
    """The process that a lock file names; None where there is no such file or it makes no sense."""
    return decode_known(Holder, read_json(lock))


def this_process(now: float, job: str = "", script: tuple[str, ...] = ()) -> Holder:
    """This process as a holder."""
    started, token = start_ticks(os.getpid()) or 0, os.urandom(8).hex()
    return Holder(socket.gethostname(), os.getpid(), _space(), started, now, token, job, script)


def _space() -> str:
    """Boot and process namespace, empty where a sandbox hides them."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def sleep(seconds: float) -> bool:
    """Wait, and never give up: how somebody without stop signals watches a holder."""
    time.sleep(seconds)
    return False


def is_alive(file: Path, stopped: Callable[[float], bool] = sleep, patience: float = STILL) -> bool:
    """Whether the process that a file names still runs. Takes up to `patience` seconds where it cannot be seen from here.

    `stopped` sleeps for so many seconds, and returns whether to give up, which counts as alive.
    """
    holder = read_holder(file)
    if holder and _is_seen(holder):
        return is_here(holder)
    seen = _touched(file)
    for _ in range(
        math.ceil(patience / POLL) if seen else 0
    ):  # polls, not seconds: this process may be frozen meanwhile
        if stopped(POLL):
            return True
        if (now := _touched(file)) != seen:
            return bool(now)
    return False


def is_here(holder: Holder | None) -> bool:
    """Whether a holder certainly runs in this process namespace: on this machine, or in this container."""
    return holder is not None and _is_seen(holder) and start_ticks(holder.pid) == holder.started


def _is_seen(holder: Holder) -> bool:
    """Whether /proc tells if a holder runs."""
    return bool(holder.space) and holder.space == _space() and _visible(holder.pid)


def _visible(pid: int) -> bool:
    """Whether /proc tells the truth about a process: another user's may be hidden from us (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return start_ticks(pid) is not None
    return True


def _touched(file: Path) -> tuple[int, ...]:
    """A file's identity and last heartbeat. Opening it makes NFS ask its server."""
    try:
        with open_run_file(file) as opened:
            found = os.fstat(opened.fileno())
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns)


class FolderLock:
    """This process's hold on a node's folder in a run directory."""

    def __init__(self, file: Path) -> None:
        """`file`: where it says so."""
        self._file = file
        self._released = threading.Event()
        self.lost = ""  # who took the folder over, if somebody did

    def take(self, mine: Holder, make_way: Callable[[Holder | None], None]) -> None:
        """Take it as `mine`. `make_way` is called with who holds it, and raises where that one is alive.

        Raises OSError where it cannot be written, RuntimeError where no thread can be started.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        while not self._create(mine):
            make_way(read_holder(self._file))
            # Two processes may come here at once; whoever is too late finds another file in its place and ends.
            with suppress(FileNotFoundError), held_folder(self._file.parent) as folder:
                aside = (folder / self._file.name).rename(folder / f".{self._file.name}.{os.urandom(8).hex()}")
                aside.unlink()
        try:
            self._start_keeping()
        except RuntimeError:
            self._file.unlink(missing_ok=True)
            raise

    def _create(self, mine: Holder) -> bool:
        try:
            with held_folder(self._file.parent) as folder:
                self._number = os.open(
                    folder / self._file.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644
                )
        except FileExistsError:
            return False
        try:
            os.write(self._number, json.dumps(mine._asdict()).encode())
        except OSError:
            self._file.unlink(missing_ok=True)
            raise
        return True

    def _start_keeping(self) -> None:
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="holder")
        self._keeper.start()

    def _stop_keeping(self) -> None:
        self._released.set()
        self._keeper.join()

    def _keep(self) -> None:
        while not self._released.wait(TOUCH):
            self._touch()

    def _touch(self) -> None:
        """Show that this process lives, and notice where another one took over."""
        with suppress(OSError):  # a disk that is full for a while, a server that is away
            os.utime(self._number)
            if not self._mine():
                self.lost = f"{name_of(read_holder(self._file))}, which took over this run directory"

    def _mine(self) -> bool:
        """Whether our file is still in its place, or none is: then somebody cleared the folder away."""
        try:
            return os.path.samestat(self._file.stat(), os.fstat(self._number))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Let go; a second call has no effect."""
        if self._released.is_set():
            return
        self._stop_keeping()
        with suppress(OSError):
            if self._mine():
                self._file.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._number)


def name_of(holder: Holder | None) -> str:
    """How people read a holder whose file may make no sense."""
    return holder.text if holder else "another launcher"
