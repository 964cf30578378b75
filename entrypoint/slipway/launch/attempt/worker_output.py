"""The workers' output: to this process's stdout and stderr with `node:rank` in front, and to a log file per rank.

A rank that is alone is passed through plain. Rank 0's progress bar (text that starts with a carriage return and has no
newline) is shown on a terminal only, below everything else, and kept out of the log. In the log each line has a time in
front, so that those of all ranks can be merged (`slipway logs`).
"""

import datetime
import os
import select
import selectors
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from slipway.protocol.files import append_to_run_file, rank_log
from slipway.protocol.printable import printable

CHUNK = 65_536  # bytes; the capacity of a Linux pipe
LONGEST_LINE = 1_048_576  # bytes after which a line without an end is passed on in pieces
REMEMBERED = 2_000  # lines per rank, for the evidence in the closing line; C++ prints long stacks below it
REMEMBERED_BYTES = 4_096  # of each of them
PAUSE = 0.5  # s between two looks at whether we should go on waiting for our reader
PRINTED = 5  # lines of stdout, of which the last that is not empty tells where a rank stood
ERASE_LINE = b"\r\x1b[2K"


class Console:
    """Where lines of all ranks meet. Nothing that goes wrong with writing them may stop the training."""

    def __init__(self, terminal: bool, give_up: Callable[[], bool]) -> None:
        self.terminal = terminal
        self._give_up = give_up
        self._stalled = False
        self._bar = b""
        self.written = 0  # texts, of whatever kind

    def line(self, text: bytes, out: int) -> None:
        """Write a whole line to a file descriptor, above the progress bar where one is shown."""
        if self._bar and os.isatty(out):
            text = ERASE_LINE + text + self._bar
        self._write(text, out)

    def bar(self, text: bytes) -> None:
        """Show the newest state of the progress bar; empty text ends it."""
        if self.terminal and text != self._bar:
            self._bar = text
            self._write(text or ERASE_LINE, sys.stderr.fileno())

    def _write(self, text: bytes, out: int) -> None:
        self.written += 1
        # A reader that we gave up once is not waited for with every line again.
        self._stalled = not write_out(text, out, self._give_up, 0 if self._stalled else PAUSE)


def write_out(text: bytes, out: int, give_up: Callable[[], bool] = lambda: True, pause: float = PAUSE) -> bool:
    """Write to our stdout or stderr; where its reader is gone or its disk full the text is lost, and nothing else.

    A reader that pauses (`| less`) makes us wait, until `give_up` is true: a launcher that was asked to stop must not hang
    on its output; then the answer is False. Not through Python's streams: what they could not write they try again at
    exit, and make the exit code 120.
    """
    rest = memoryview(text)
    while rest:
        try:
            if select.select([], [out], [], pause)[1]:
                rest = rest[os.write(out, rest[: select.PIPE_BUF]) :]  # so much fits where select says that it does
            elif give_up():
                return False
        except BlockingIOError:
            continue
        except OSError:
            return True
    return True


def say(line: str) -> None:
    """Print a line of the launcher's own."""
    write_out(f"slipway: {printable(line)}\n".encode(errors="replace"), sys.stderr.fileno())


def short_path(path: Path) -> str:
    """A path as one would type it here."""
    with suppress(FileNotFoundError, ValueError):  # the working directory is gone, or the path lies elsewhere
        return str(path.relative_to(Path.cwd()))
    return str(path)


class OutputStream:
    """One worker's stdout or stderr: a pipe, split into lines."""

    def __init__(self, prefix: bytes, console: Console, out: int, log: FileIO, last: deque[str]) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._prefix, self._console, self._out, self._log, self._last = prefix, console, out, log, last
        self._rest = b""

    def read(self) -> bool:
        """Pass on what has come; False when all writers are gone."""
        try:
            chunk = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if self._rest.startswith(b"\r"):
            self._rest = b"\r" + self._rest.rpartition(b"\r")[2]  # only the bar's newest state counts
            self._console.bar(self._rest)
        if not chunk or len(self._rest) > LONGEST_LINE:
            self.flush()
        return bool(chunk)

    def flush(self) -> None:
        """Pass on what has come of a line without an end."""
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""

    def _pass_on(self, line: bytes) -> None:
        if line.startswith(b"\r"):
            self._console.bar(b"")
            line = line.rpartition(b"\r")[2]
        self._last.append(line[:REMEMBERED_BYTES].decode(errors="replace"))
        self._console.line(self._prefix + line + b"\n", self._out)
        with suppress(OSError):  # a full disk must not end the training; the console still has the line
            self._log.write(stamp(time.time()) + b" " + line + b"\n")


def stamp(seconds: float) -> bytes:
    """A time (Unix seconds) as it stands in front of a log's line: UTC with milliseconds, always 24 bytes."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z".encode()


def open_log(file: Path, header: str) -> FileIO:
    """Open a log file to add to; a line without a time tells which attempt's lines follow. Raises OSError."""
    log = FileIO(append_to_run_file(file), "ab")
    with suppress(OSError):  # a full disk is not the log's to tell
        log.write(f"--- {header} ---\n".encode())
    return log


class WorkerOutput:
    """All workers of this node. `last` keeps the newest lines of each rank's stderr, by rank, `printed` those of its stdout.

    `give_up`: whether to drop what our own reader does not take rather than wait for it; `header` stands in the logs
    above this attempt's lines.
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
    ) -> None:
        self._selector = selector
        self._streams: list[OutputStream] = []
        self._logs: list[FileIO] = []
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
                self._add(OutputStream(prefix, self.console, out, log, last))

    def _add(self, stream: OutputStream) -> None:
        def ready() -> None:
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

    @property
    def lines(self) -> int:
        """How many lines came so far, and how many states of a bar."""
        return self.console.written

    @property
    def open(self) -> bool:
        """Whether somebody still holds a pipe that could bring more."""
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
