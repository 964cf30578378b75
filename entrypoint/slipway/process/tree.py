"""The processes below this one: found, signalled and reaped even when the one between has died; those that we started told from
those of a container runtime; the reaper, which ends them all once the launcher is gone; and children that are forked, not
started.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO

# Those in which a process makes no progress, by their letter (proc_pid_stat(5)).
STATES = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a driver"}


def read_children(proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return the process ids of every process's children."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(IndexError, ValueError):  # it has ended meanwhile, and has no fields
                parent = int(stat_fields(int(folder.name), proc)[1])
                children.setdefault(parent, []).append(int(folder.name))
    return children


def trees(of: Iterable[int], proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return the ids of all processes below each of some; those that ended while we looked may be missing."""
    children = read_children(proc)
    found: dict[int, list[int]] = {}
    for root in of:
        found[root], queue = [], [root]
        while queue:
            below = children.get(queue.pop(), [])
            found[root] += below
            queue += below
    return found


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc_pid_stat(5)): state, parent, …; empty where it is gone."""
    with suppress(OSError):
        # pid (name) state parent …; the name may hold spaces and parentheses
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def state_of(pid: int) -> str:
    """A process's state as one letter, empty where it is gone."""
    return next(iter(stat_fields(pid)), "")


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    return state_of(pid) not in {"", "Z", "X"}


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started, in clock ticks since the machine did: pids repeat, pairs of both do not. None: not there."""
    fields = stat_fields(pid, proc)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def has_open(pid: int, folder: Path, proc: Path = Path("/proc")) -> bool:
    """Whether a process has something open in a folder, or the folder itself. True where that cannot be seen, and it lives."""
    try:
        numbers = [*(proc / str(pid) / "fd").iterdir()]
    except FileNotFoundError:
        return False
    except OSError:  # another user's, or hidden
        return lives(pid)
    for number in numbers:
        with suppress(OSError):  # closed meanwhile
            if number.readlink().is_relative_to(folder):
                return True
    return False


def ignores(pid: int, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process ignores a signal at the moment; False for one that is gone."""
    return _mask(pid, "SigIgn", proc) >> (number - 1) & 1 == 1


def catches(pid: int, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a handler for a signal at the moment; False for one that is gone."""
    return _mask(pid, "SigCgt", proc) >> (number - 1) & 1 == 1


def _mask(pid: int, name: str, proc: Path) -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = (proc / str(pid) / "status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")), 16)
    return 0


def open_process(pid: int) -> int | None:
    """A file descriptor that becomes readable when a child ends; None before Linux 5.3, and in sandboxes without it."""
    with suppress(OSError, AttributeError):  # a Python that was built with older headers has no such function
        return os.pidfd_open(pid)
    return None


def signal_name(number: int) -> str:
    """What people call a signal; most of the real-time ones have a number only."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def send_signal(pids: list[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap() -> None:
    """Collect adopted children that have ended."""
    with suppress(ChildProcessError):  # there is none left
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int, number: int) -> None:
    """Have the kernel send a signal to this process when its `parent` ends (prctl(2)); exit where it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(1)


# Every process of an attempt has inherited this variable. What was there before the launcher, and what that starts, has not. A
# process may clear or overwrite its environment (`env -i`, setproctitle): then its session shows it, or the reaper ends it.
MARK = b"SLIPWAY_NODE_DIR="


class OwnProcesses:
    """The processes below a process, without the foreign ones: those that were there before this object, and what they start.

    With pyxis and squashfuse the server of the container's root file system is a child of the task, which becomes the launcher.
    To kill it would take the root file system away from the launcher and from all other tasks of the node.
    """

    def __init__(self, root: int | None = None, proc: Path = Path("/proc")) -> None:
        """Remember by process id and start what is below `root` by now; by default that is this process."""
        self._root, self._proc = root or os.getpid(), proc
        self._foreign = {pid: start_ticks(pid, proc) for pid in trees([self._root], proc)[self._root]}
        self._sessions: dict[int, int | None] = {}  # begun by our own processes: the leader's process id, and its start

    def find(self, spared: Collection[int | None] = ()) -> list[int]:
        """Return the ids of our own processes but the `spared`; those that ended while we looked may be missing.

        The sessions that they began are remembered: a member of one is our own whatever it made of its environment.
        """
        children = read_children(self._proc)
        foreign = {pid for pid, start in self._foreign.items() if start_ticks(pid, self._proc) == start}
        if self._foreign:  # otherwise only our own processes can leave orphans to us
            ours = {pid for pid in children.get(self._root, []) if self._is_marked(pid) or self._is_member(pid)}
            foreign |= {*children.get(self._root, [])} - ours
        found, queue = list[int](), [self._root]
        while queue:
            below = [pid for pid in children.get(queue.pop(), []) if pid not in foreign]
            found += below
            queue += below
        self._sessions |= {pid: start_ticks(pid, self._proc) for pid in found if self._session(pid) == pid}
        return [pid for pid in found if pid not in spared]

    def end(self, spared: Collection[int | None] = ()) -> None:
        """Kill our own processes but the `spared`."""
        kill_all(lambda: self.find(spared))
        self._sessions.clear()  # in days to come their numbers may be given to foreign processes

    def end_unmarked(self) -> None:
        """Kill those of our own processes that the process which adopts them would take for foreign ones."""
        kill_all(lambda: [pid for pid in self.find() if not self._is_marked(pid) and start_ticks(pid, self._proc)])

    def _session(self, pid: int) -> int:
        """The session of a process, by its leader's process id; 0 where the process is gone."""
        fields = stat_fields(pid, self._proc)
        return int(fields[3]) if len(fields) > 3 else 0

    def _is_member(self, pid: int) -> bool:
        """Whether a process is in a session that one of ours began, since no process can enter another's session.

        The number of a session is not given away while it has members, even if the leader has ended.
        """
        session = self._session(pid)
        return session in self._sessions and start_ticks(session, self._proc) in {None, self._sessions[session]}

    def _is_marked(self, pid: int) -> bool:
        """Whether a child of ours is our own. One that lost its foreign parent, and so became our child, is not."""
        try:
            return MARK in (self._proc / str(pid) / "environ").read_bytes()
        except OSError:  # it has ended, or has rights that we lack, and could not be signalled either
            return False


def kill_all(find: Callable[[], list[int]]) -> None:
    """Kill what it finds, again until that is nothing: a process may fork while we look."""
    for _ in range(20):
        if not (found := find()):
            return
        send_signal(found, signal.SIGKILL)
        reap()


GONE = signal.SIGRTMIN + 1  # from the kernel: the launcher is gone


def stand_between(launcher: int) -> None:
    """Continue in a child of this process, which remains between launcher and child as the reaper, and ends as the child does.

    A launcher ends all its descendants itself. One that is killed with SIGKILL cannot: torchrun and the workers end with it
    (PR_SET_PDEATHSIG), but what a user's script started in sessions of its own would go on, so the reaper ends it. That costs a
    fork of a Python process that has imported next to nothing. `launcher` is the process id of the parent. It may be process 1 of
    a container.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, there is no notice of a child's end
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {GONE, signal.SIGCHLD})
    end_with(launcher, GONE)
    adopt_orphans()
    own, below, child = os.getpid(), OwnProcesses(), os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        end_with(own, signal.SIGKILL)
        return
    close_files()  # the launcher reads the workers' pipes until no process has them open
    while True:
        if signal.sigwait({GONE, signal.SIGCHLD}) == GONE:
            below.end()
            os._exit(1)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    below.end_unmarked()  # all that is below is known here to be our own; the launcher knows it by its mark
                    end_as(ended[1])


def end_as(status: int) -> None:
    """End as another process did, by its wait status: with its exit code, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    sys.stdout.flush()
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def close_files(spared: Collection[int] = ()) -> None:
    """Close what this process has open beside its standard streams."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in spared:
            with suppress(OSError):  # the listing's own
                os.close(number)


LENGTH = 8  # bytes that say how long a message to the standby is
FILES = 250  # that one message to the standby can carry; the kernel allows 253 (unix(7), SCM_RIGHTS)


class Forked:
    """A child that was forked to do what a program would be started for; like subprocess.Popen, as far as it goes.

    `returncode` is negative for a signal.
    """

    def __init__(self, pid: int, stdin: IO[bytes] | None = None) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # it was waited for elsewhere
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """The same once it has ended. TimeoutExpired after so many seconds."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise TimeoutExpired([], timeout)
            time.sleep(0.01)
        return code


ARG_START = 45  # where they begin, of what stat_fields returns; where they end follows (proc_pid_stat(5))


def rename_process(module: str, *words: str) -> None:
    """Make `ps` show `python -P -u -m MODULE WORDS…`, cut off to the length of this process's own command line."""
    write_command_line("\0".join((sys.executable, "-P", "-u", "-m", module, *words)).encode())


def read_command_line() -> bytes:
    """What `ps` shows of this process."""
    with suppress(OSError):
        return Path("/proc/self/cmdline").read_bytes()
    return b""


def write_command_line(text: bytes) -> None:
    """Make `ps` show this, cut off to the length of this process's own command line."""
    with suppress(OSError, ValueError, IndexError):
        start, end = (int(field) for field in stat_fields(os.getpid())[ARG_START : ARG_START + 2])
        if 0 < start < end:  # else a kernel that does not show it
            ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
