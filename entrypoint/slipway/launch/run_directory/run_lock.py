"""Who holds a run directory: one launcher per node at a time, also on file systems that several hosts share.

A launcher keeps `launcher.json` in its node's folder and touches it every second. Locks are no use: flock does nothing on
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
from typing import TYPE_CHECKING

from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.node_directory import Holder, read_holder
from slipway.launch.run_directory.run import Run, cannot_make
from slipway.process.tree import start_ticks
from slipway.protocol.errors import CODE_OF, MORE_PROCESSES, UNHEALTHY, LaunchError
from slipway.protocol.files import held_folder, open_run_file

if TYPE_CHECKING:
    from slipway.launch.attempt.stops import Stops

TOUCH = 1.0  # s between two signs of life
POLL = TOUCH / 4  # s between polls for a heartbeat
STILL = 15.0  # s without one after which a launcher that cannot be seen is dead; a busy disk delays them by seconds


def this_launcher(now: float, job: str = "") -> Holder:
    """This process as a holder."""
    started, token = start_ticks(os.getpid()) or 0, os.urandom(8).hex()
    return Holder(socket.gethostname(), os.getpid(), _space(), started, now, token, job)


def _space() -> str:
    """Boot and process namespace, empty where a sandbox hides them."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def lock_file(run: Run, plan: Plan) -> Path:
    """The file in which a launcher says that it holds its node's folder; one per process where it was started so."""
    return run.node(plan.topology.node_rank, plan.topology.process_rank).lock


def is_alive(file: Path, stopped: Callable[[float], bool], patience: float = STILL) -> bool:
    """Whether the launcher that a file names still runs. Takes up to `patience` seconds where it cannot be seen from here.

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
    """Whether a launcher certainly runs in this process namespace: on this machine, or in this container."""
    return holder is not None and _is_seen(holder) and start_ticks(holder.pid) == holder.started


def _is_seen(holder: Holder) -> bool:
    """Whether /proc tells if a launcher runs."""
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


def refuse_held(file: Path, stops: Stops, patience: float = STILL) -> None:
    """Raise LaunchError (78) while the launcher that a file names is alive; 75 or 79 where a stop comes meanwhile."""
    holder = read_holder(file)
    if not is_alive(file, stops.wait, patience):
        return
    if stop := stops.first:
        raise LaunchError(f"{stop.name} came before anything was started.", CODE_OF[stops.word])
    run = file.parent.parent
    raise LaunchError(
        f"The run directory {run} is in use by {_name(holder)}. Wait for it, end it with "
        f"`slipway stop {shlex.quote(str(run))}`, or choose another folder with --run-dir."
    )


def _name(holder: Holder | None) -> str:
    return holder.text if holder else "another launcher"


class RunLock:
    """This launcher's hold on its node's folder in a run directory, as a context manager."""

    def __init__(
        self, file: Path, say: Callable[[str], None], stops: Stops, patience: float = STILL, job: str = ""
    ) -> None:
        """`file` is what `lock_file` of the run says. Who holds it for the same `job`, a nonce, is no part of it any more:
        its nodes have agreed on this launcher in its place.
        """
        self._file, self._say, self._stops, self._patience, self._job = file, say, stops, patience, job
        self._released = threading.Event()
        self.lost = ""  # who took the run directory over, if somebody did

    def __enter__(self) -> RunLock:
        """Take it. Raises LaunchError: 78 while another launcher holds it, 77 or 78 where it cannot be written."""
        mine = this_launcher(time.time(), self._job)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            while not self._create(mine):
                self._take_over()
        except OSError as error:
            raise cannot_make(error) from None
        try:
            self._start_keeping()
        except RuntimeError as error:
            self._file.unlink(missing_ok=True)
            raise LaunchError(f"The launcher cannot continue: {error}. Remedy: {MORE_PROCESSES}.", UNHEALTHY) from None
        return self

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

    def _take_over(self) -> None:
        holder = read_holder(self._file)
        if self._job and holder and holder.job == self._job:
            self._say(f"{_name(holder)} was lost; this launcher takes its place")
        else:
            refuse_held(self._file, self._stops, self._patience)
            self._say(f"{_name(holder)} ended without a report; this launcher takes over the run directory")
        # Two launchers may come here at once; whoever is too late finds another file in its place and ends.
        with suppress(FileNotFoundError), held_folder(self._file.parent) as folder:
            aside = (folder / self._file.name).rename(folder / f".{self._file.name}.{os.urandom(8).hex()}")
            aside.unlink()

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
        """Show that this launcher lives, and notice where another one took over."""
        with suppress(OSError):  # a disk that is full for a while, a server that is away
            os.utime(self._number)
            if not self._mine():
                self.lost = f"{_name(read_holder(self._file))}, which took over this run directory"

    def _mine(self) -> bool:
        """Whether our file is still in its place, or none is: then somebody cleared the folder away."""
        try:
            return os.path.samestat(self._file.stat(), os.fstat(self._number))
        except FileNotFoundError:
            return True

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self._stop_keeping()
        with suppress(OSError):
            if self._mine():
                self._file.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._number)
