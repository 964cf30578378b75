"""What workers print and read. Their output goes to this process's stdout and stderr with `node:rank` in front, and to a log file
per rank; rank 0 of a script of the user's own reads our stdin.

The output of a rank that is alone has no prefix. Progress bars of rank 0 are shown live on a terminal, below everything else,
those of other ranks only in their logs. There, and where there is no terminal, a bar is a line every 30 s, and one for its end.
In the log each line begins with a time, so that those of all ranks can be merged (`slipway logs`). On a terminal lines of our own
workloads are folded to its width, and lines that a worker marked are only in the log.
"""

import datetime
import errno
import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from slipway.launch.attempt.terminal import Console, Screen, ScreenRow, columns_of, end_line, fold
from slipway.protocol.files import append_to_run_file, rank_log
from slipway.protocol.marks import LOG_ALONE
from slipway.protocol.printable import last_line

CHUNK = 65_536  # bytes; the capacity of a Linux pipe
LONGEST_LINE = 1_048_576  # bytes after which a line without an end is passed on in pieces
PROMPT_SECONDS = 0.2  # after which what has no newline is taken for a prompt, where other ranks print, too
BAR_SECONDS = 30.0  # between two states of a progress bar that are kept
REMEMBERED = 2_000  # lines per rank, for the evidence in the closing line; C++ prints long stacks below it
REMEMBERED_BYTES = 4_096  # of each of them
PRINTED = 5  # lines of stdout, of which the last that is not empty shows how far a rank came


class Way(NamedTuple):
    """How the output of a worker reaches the console.

    `prefix` begins each line, `bars`: progress bars are shown as they change, `prompts` after how many
    seconds a line is shown that has no end (None: never; only rank 0 has a stdin to answer with), `folds` that lines are
    folded to the terminal's width.
    """

    prefix: bytes
    bars: bool
    prompts: float | None
    folds: bool = False


class OutputStream:
    """One worker's stdout or stderr: a pipe, split into lines."""

    def __init__(self, console: Console, way: Way, out: int, log: FileIO, last: deque[str]) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._console, self._way, self._out, self._log, self._last = console, way, out, log, last
        self._screen = Screen()
        self._came = 0.0  # when there was something last (monotonic seconds)
        self._begun = b""  # what the console has of the last line
        self._kept, self._since = list[bytes](), 0.0  # the state of bars that was kept last, and when

    def read(self) -> bool:
        """Pass on what has come; False when all writers are gone."""
        try:
            chunk = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return True
        self._came, barred = time.monotonic(), self._screen.bar
        for row in self._screen.feed(chunk):
            self._finish(row)
        if not chunk or self._screen.size > LONGEST_LINE:
            self.flush()
        if self._screen.bar:
            if not barred:
                self._since = self._came
            self._draw(self._screen.rows)
        elif barred:
            self._draw([])
        self.poll(self._came)
        return bool(chunk)

    def poll(self, now: float) -> float:
        """Show what has waited long enough by now (monotonic seconds); returns for how long there is nothing else to show."""
        if self._screen.over and now - self._came >= PROMPT_SECONDS:
            self.flush()
        rows = self._screen.rows
        if self._screen.bar:
            if now - self._since >= BAR_SECONDS and rows != self._kept:
                self._kept, self._since = rows, now
                for row in filter(None, rows):
                    self._keep(row)
                    if not self._console.terminal:
                        self._console.line(self._way.prefix, row, self._out)
        elif self._way.prompts is not None and rows[0] != self._begun:
            if now - self._came < self._way.prompts:
                return self._came + self._way.prompts - now
            self._begun = rows[0]
            self._console.begin(self._way.prefix, rows[0], self._out)
        return math.inf

    def flush(self) -> None:
        """Pass on what has come of lines without an end."""
        for row in self._screen.finish():
            self._finish(row)

    def _draw(self, rows: list[bytes]) -> None:
        if self._way.bars:
            self._console.bar(b"\n".join(rows))

    def _finish(self, row: ScreenRow) -> None:
        """Pass on a line."""
        self._begun, self._kept = b"", []
        text = row.text.removeprefix(LOG_ALONE)
        self._last.append(text[:REMEMBERED_BYTES].decode(errors="replace"))
        if row.bar:
            self._draw([])
        if text == row.text and (not row.bar or self._way.bars or not self._console.terminal):
            self._show(text)
        self._keep(text)

    def _show(self, text: bytes) -> None:
        prefix = self._way.prefix
        if self._way.folds:
            folded = fold(prefix.decode(), text.decode(errors="replace"), columns_of(self._out))
            text = folded.encode(errors="replace")[len(prefix) :]
        self._console.line(prefix, text, self._out)

    def _keep(self, line: bytes) -> None:
        with suppress(OSError):  # a full disk must not end the training; the console still has the line
            self._log.write(stamp(time.time()) + b" " + line + b"\n")


def stamp(seconds: float) -> bytes:
    """A time (Unix seconds) as it begins a log's line: UTC with milliseconds, always 24 bytes."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z".encode()


def open_log(file: Path, header: str) -> FileIO:
    """Open a log file to add to; a line without a time names the attempt whose lines follow. Raises OSError."""
    log = FileIO(append_to_run_file(file), "ab")
    with suppress(OSError):  # a full disk is reported elsewhere
        log.write(f"--- {header} ---\n".encode())
    return log


class WorkerOutput:
    """All workers of this node. `last` keeps the newest lines of each rank's stderr, by rank, `printed` those of its stdout.

    `give_up`: whether to drop what our own reader does not take rather than wait for it; `header` is in the logs
    above this attempt's lines; `builtin`: whether what is printed is ours to fold.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        node_rank: int,
        alone: bool,
        folder: Path,
        selector: selectors.BaseSelector,
        give_up: Callable[[], bool],
        header: str,
        builtin: bool = False,
    ) -> None:
        self._selector = selector
        self._streams: list[OutputStream] = []
        self._logs: list[FileIO] = []
        self.chunks = 0  # pieces of output that came so far
        self.console = Console(sys.stderr.isatty(), give_up)
        self.last: dict[int, deque[str]] = {}
        self.printed: dict[int, deque[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for rank in ranks:
            log = open_log(folder / rank_log(rank), header)
            prefix = b"" if alone else f"[{node_rank}:{rank}] ".encode()
            self._logs.append(log)
            self.last[rank], self.printed[rank] = deque(maxlen=REMEMBERED), deque(maxlen=PRINTED)
            for out, last in ((sys.stdout.fileno(), self.printed[rank]), (sys.stderr.fileno(), self.last[rank])):
                at_once = alone and os.isatty(out)
                prompts = (0.0 if at_once else PROMPT_SECONDS) if rank == 0 else None
                way = Way(prefix, self.console.terminal and rank == 0, prompts, builtin and os.isatty(out))
                self._add(OutputStream(self.console, way, out, log, last))

    def _add(self, stream: OutputStream) -> None:
        def ready() -> None:
            self.chunks += 1
            if not stream.read():
                self._selector.unregister(stream.reader)
                self._streams.remove(stream)
                os.close(stream.reader)

        self._streams.append(stream)
        self._selector.register(stream.reader, selectors.EVENT_READ, ready)

    @property
    def writers(self) -> tuple[int, ...]:
        """The pipes' other ends, stdout and stderr of each rank in turn."""
        return tuple(stream.writer for stream in self._streams)

    def poll(self) -> float:
        """Show what has waited long enough; returns for how many seconds there is nothing else to show."""
        now = time.monotonic()
        return min((stream.poll(now) for stream in self._streams), default=math.inf)

    def last_line(self, rank: int) -> str:
        """What a rank printed last: to stdout or, where it printed nothing there, to stderr."""
        return last_line(self.printed[rank]) or last_line(self.last[rank])

    @property
    def open(self) -> bool:
        """Whether a process still holds a pipe that could bring more."""
        return bool(self._streams)

    def close_writers(self) -> None:
        """Close our copies of the workers' ends, so that the last worker's end is seen."""
        for stream in self._streams:
            os.close(stream.writer)

    def close(self) -> None:
        """Pass on what is left and close the log files."""
        for stream in list(self._streams):
            stream.read()
            stream.flush()
            self._selector.unregister(stream.reader)
            os.close(stream.reader)
        self.console.bar(b"")
        for log in self._logs:
            with suppress(OSError):
                log.close()


STDIN = 0
# Bytes; no line that is typed is longer (termios(3)), and a pipe that is ready to write takes as many.
LINE = select.PIPE_BUF


class StandardInput:
    """Our stdin, for the child. `file` is what subprocess.Popen takes as stdin; there is nothing to read unless it is `wanted`.

    A file or a pipe is handed on as it is. Only its foreground process group may read from a terminal, and workers are in
    sessions of their own: from a terminal we read ourselves, line by line, and write to a pipe.
    """

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

    def poll(self) -> None:
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
        if not text:  # Ctrl-D, or the reader is gone
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
