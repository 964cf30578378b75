"""The processes below this one: found, signalled and reaped also when the one between has died."""

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a driver",
}  # proc_pid_stat(5)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(of: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the process ids below a process; those that ended while we looked may be missing."""
    return trees([of], proc)[of]


def read_children(proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """Return the process ids of every process's children."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(IndexError, ValueError):
                parent = int(stat_fields(int(folder.name), proc)[1])
                children.setdefault(parent, []).append(int(folder.name))
    return children


def trees(of: Iterable[int], proc: Path = Path("/proc")) -> dict[int, list[int]]:
    """The same as `descendants` for several processes, by process: all that run here are looked at once."""
    children = read_children(proc)
    found: dict[int, list[int]] = {}
    for root in of:
        found[root], queue = [], [root]
        while queue:
            below = children.get(queue.pop(), [])
            found[root] += below
            queue += below
    return found


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


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc_pid_stat(5)): state, parent, …; empty where it is gone."""
    with suppress(OSError):
        # pid (name) state parent …; the name may hold spaces and parentheses
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def has_open(pid: int, folder: Path, proc: Path = Path("/proc")) -> bool:
    """Whether a process has something open in a folder, or the folder itself. True where that cannot be seen, and it lives."""
    try:
        numbers = [*(proc / str(pid) / "fd").iterdir()]
    except FileNotFoundError:
        return False
    except OSError:
        return lives(pid)
    for number in numbers:
        with suppress(OSError):  # closed meanwhile
            if number.readlink().is_relative_to(folder):
                return True
    return False


def open_process(pid: int) -> int | None:
    """A file descriptor that becomes readable when a child ends; None before Linux 5.3, and in sandboxes without it."""
    with suppress(OSError, AttributeError):  # a Python that was built with older headers has no such function
        return os.pidfd_open(pid)
    return None


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


def signal_name(number: int) -> str:
    """What people call a signal; most of the real-time ones have a number only."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def send_signal(pids: list[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> None:
    """Collect adopted children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
