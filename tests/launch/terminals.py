"""A terminal (pseudo-terminal) in which somebody types, with a `slipway` in its foreground."""

import os
import pty
import subprocess
import sys
import termios
import threading
from pathlib import Path

from waiting import PATIENCE, wait_until

SIZE = (24, 100)  # rows and columns


class Terminal:
    """The program and all that it has shown so far."""

    def __init__(self, folder: Path, *command: str, size: tuple[int, int] = SIZE, **variables: str) -> None:
        """Start `slipway`, or with words in `command` that begin otherwise a program of that name."""
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, size)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            cwd=folder,
            env={
                **kept,
                "PYTHONWARNINGS": "ignore",
                "TERM": "xterm",
                "SLIPWAY": f"{sys.executable} -m slipway",
                **variables,
            },
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._ours, 65_536)
            except OSError:  # nobody has the other end any more
                return
            self._shown += chunk

    @property
    def text(self) -> str:
        return self._shown.decode(errors="replace")

    def resize(self, size: tuple[int, int]) -> None:
        termios.tcsetwinsize(self._ours, size)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, words: str, after: int = 0) -> int:
        """Wait until these words are there, behind a place in the text; returns where they end."""

        def shown() -> bool:
            ended = self.process.poll() is not None
            if ended:
                self._reader.join(10)
            assert words in self.text[after:] or not ended, f"ended without {words!r}:\n{self.text}"
            return words in self.text[after:]

        wait_until(shown, lambda: f"{words!r}:\n{self.text}")
        return self.text.index(words, after) + len(words)

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(10)
        return code
