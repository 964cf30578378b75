"""Where a process stands, seen from outside: for one that cannot answer itself, or has no watcher.

By py-spy, which reads its memory and does not stop it (--nonblocking), so nothing becomes of the process whatever it does.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 8.0  # that py-spy may take; milliseconds, usually
COMMAND = ("dump", "--nonblocking", "--json", "--full-filenames", "--pid")


class Outside:
    """One look at some processes, each in a thread of its own: who waits for a disk may hold up whoever looks, too."""

    def __init__(self, pids: Iterable[int], program: str | None = None) -> None:
        """`program` is py-spy; by default that of our own environment, or else the one on PATH."""
        self._program = program or find_program()
        self.answers: dict[int, Mapping[str, Any]] = {}  # by process, in the form that launch/watch/recorder.py has
        self._threads = [threading.Thread(target=self._look, args=(pid,), daemon=True) for pid in pids if self._program]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether all is known that will be."""
        return not any(thread.is_alive() for thread in self._threads)

    def _look(self, pid: int) -> None:
        try:
            done = subprocess.run(
                [str(self._program), *COMMAND, str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
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
    """What py-spy says of a process, as its watcher would. KeyError or TypeError where that makes no sense."""
    rows = [
        [
            thread.get("thread_name") or "",
            thread["os_thread_id"] == pid,
            [[frame["filename"], frame["line"], frame["name"]] for frame in thread["frames"]],
        ]
        for thread in threads
    ]
    return {"begun": [], "last": {}, "members": {}, "threads": rows}
