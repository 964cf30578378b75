"""The processes below this one: found, signalled and reaped also when the one between has died."""

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(of: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the process ids below a process; those that ended while we looked may be missing."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # pid (name) state ppid …; the name may hold spaces and parentheses
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, queue = [], [of]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def ignores(pid: int, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process ignores a signal at the moment; False for one that is gone."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (proc / str(pid) / "status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
        return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def send(pids: list[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(own: int) -> None:
    """Kill everything below us, again until nothing is left: a process may fork while we look."""
    for _ in range(20):
        below = descendants(own)
        if not below:
            return
        send(below, signal.SIGKILL)
        reap()


def reap() -> None:
    """Collect adopted children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
