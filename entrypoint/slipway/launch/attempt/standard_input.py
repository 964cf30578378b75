"""What rank 0 of a script of the user's own reads: our stdin.

A file or a pipe is handed on as it is. A terminal is read by its foreground process group alone, and workers are in sessions of
their own: from a terminal we read ourselves, line by line, and write to a pipe.
"""

import errno
import os
import select
import selectors
import signal
import subprocess
import sys

from slipway.launch.attempt.console import end_line

STDIN = 0
LINE = (
    select.PIPE_BUF
)  # bytes; no line that is typed is longer (termios(3)), and so much fits where a pipe can be written


class StandardInput:
    """`file` is for the child's stdin, as subprocess.Popen takes it; nothing to read unless it is `wanted`."""

    def __init__(self, selector: selectors.BaseSelector, *, wanted: bool) -> None:
        """Raises OSError."""
        self._selector, self._listening = selector, False
        self._writer: int | None = None
        wanted = wanted and sys.stdin is not None  # started with it closed, we have some other file under this number
        self.file = STDIN if wanted else subprocess.DEVNULL
        if wanted and os.isatty(STDIN):
            self.file, self._writer = os.pipe()
            os.set_blocking(self._writer, False)

    def hand_on(self) -> None:
        """Leave our copy of `file` to the child, which has been started with it."""
        if self._writer is not None:
            os.close(self.file)

    def look(self) -> None:
        """Listen to the terminal from here on, where we are in its foreground."""
        if not self._listening and self._writer is not None and is_foreground():
            self._listening = True
            self._selector.register(STDIN, selectors.EVENT_READ, self._pump)

    def _rest(self) -> None:
        """Listen no more until the next look."""
        if self._listening:
            self._listening = False
            self._selector.unregister(STDIN)

    def _pump(self) -> None:
        assert self._writer is not None
        if not select.select([], [self._writer], [], 0)[1]:
            self._rest()
            return
        # In the background a read would stop us, all of a sudden; with the signal blocked it fails (EIO).
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        try:
            text = os.read(STDIN, LINE)
        except OSError:
            self._rest()
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if text.endswith(b"\n"):
            for stream in (sys.stdout, sys.stderr):
                if os.isatty(stream.fileno()):
                    end_line(stream.fileno())
        try:
            os.write(self._writer, text)
        except BrokenPipeError:
            text = b""
        if not text:  # Ctrl-D, or nobody reads any more
            self.close()

    def close(self) -> None:
        """Pass on that no more comes."""
        self._rest()
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None


def is_foreground() -> bool:
    """Whether we may read from the terminal that is our stdin; of one that is not our session's anybody may."""
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError as error:
        return error.errno == errno.ENOTTY
