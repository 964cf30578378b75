"""A process that was forked to do what another would be started for: how its parent sees it, and what `ps` shows of it."""

import ctypes
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO

FILES = 250  # that one message can carry; the kernel allows 253 (unix(7), SCM_RIGHTS)
ARG_START = 45  # of the fields behind the name in /proc/PID/stat (proc_pid_stat(5)); the end follows


class Forked:
    """A child of this process, like subprocess.Popen. `returncode` is negative for a signal."""

    def __init__(self, pid: int, stdin: IO[bytes] | None = None) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
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


def rename_process(module: str, *words: str) -> None:
    """Show `python -P -u -m MODULE WORDS…`, cut off where the words of this process's own start had no more room."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(field) for field in fields[ARG_START : ARG_START + 2])
        if not 0 < start < end:  # a kernel that does not tell
            return
        text = "\0".join((sys.executable, "-P", "-u", "-m", module, *words)).encode()[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
