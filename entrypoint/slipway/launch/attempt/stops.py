"""Requests to stop the job (signals, a stop file in the run directory, `slipway stop`), all in one list of `Stop`; and by when
this node's processes must have ended.
"""

import math
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from slipway.launch.run_directory.node_directory import read_stop
from slipway.protocol.files import STOP_FILE, touch_run_file, write_json
from slipway.protocol.outcomes import Word

STOP_WORDS = {
    signal.SIGTERM: Word.STOPPED,
    signal.SIGUSR1: Word.STOPPED,
    signal.SIGHUP: Word.STOPPED,  # a terminal that was closed, a connection that was lost
    signal.SIGINT: Word.CANCELLED,
}
# What others that would end the launcher amount to. LSF and SGE send USR2 before a limit; in ranks it asks for their stacks. XCPU
# is a limit of processor time. What tells of a crash (SIGSEGV) is none, and real-time signals have no names.
AMOUNTS_TO = {
    signal.SIGHUP: signal.SIGTERM,  # scripts that save when they are stopped handle SIGTERM
    signal.SIGUSR2: signal.SIGUSR1,
    **dict.fromkeys(
        (
            *(
                signal.SIGXCPU,
                signal.SIGALRM,
                signal.SIGVTALRM,
                signal.SIGPROF,
                signal.SIGQUIT,
                signal.SIGPWR,
                signal.SIGIO,
            ),
            *(signal.SIGSTKFLT, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)),
        ),
        signal.SIGTERM,
    ),
}
CAUGHT = tuple(dict.fromkeys((*STOP_WORDS, *AMOUNTS_TO)))
SAME_STOP = 5.0  # s; requests this close count as one: a Slurm time limit sends two signals
TICK = 0.5  # s between two checks of the clock and of files
LEAVE = 5.0  # s before a machine goes away by which its node should have left, with its verdict written


class Stop(NamedTuple):
    """One request: when it came (monotonic seconds), the signal that it is or amounts to, and its name for people.

    `here`: whether it was this launcher that was asked, and not another node's. `by`: the moment by which this node should have
    left, since its machine goes away. `notice`: a cloud announced that; the job need not end with this node.
    """

    at: float
    number: signal.Signals
    name: str
    here: bool = True
    by: float = math.inf
    notice: bool = False


def catch_stops(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Catch the signals that stop a job, but for a SIGHUP that is ignored already (nohup). Returns the handlers of before."""
    spared = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    return {number: signal.signal(number, handler) for number in CAUGHT if number not in spared}


def read_signal(number: int) -> tuple[signal.Signals, str]:
    """The stop that a signal amounts to, and the signal's name."""
    amounts = signal.Signals(AMOUNTS_TO.get(number, number))
    try:
        return amounts, signal.Signals(number).name
    except ValueError:
        return amounts, f"signal {number}"


def turn_deaf() -> None:
    """Ignore stops from here on: the job is over, and one that comes late must not turn its exit code into a signal's."""
    for number in CAUGHT:
        signal.signal(number, signal.SIG_IGN)


class Stops:
    """The requests that came, for a `with` block. It only remembers; a process that waits is woken through `reader`."""

    def __init__(self) -> None:
        self.came: list[Stop] = []
        self.reader, self._writer = socket.socketpair()
        self._file: Path | None = None
        self._seen: tuple[int, ...] = ()
        self._listen: Callable[[], object] = lambda: None

    def __enter__(self) -> "Stops":
        """Catch signals from here on."""
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = catch_stops(self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append(Stop(time.monotonic(), *read_signal(number)))

    def announce(self, name: str, left: float | None) -> None:
        """Take an interruption notice: this machine goes away, in so many seconds if that is known. From any thread."""
        now = time.monotonic()
        # Where little time is left the save gets most of it; a deadline that has passed says that the clocks differ.
        by = now + max(left - LEAVE, left / 2) if left is not None and left > 0 else math.inf
        self.came.append(Stop(now, signal.SIGTERM, name, by=by, notice=True))
        self.wake()

    def wake(self) -> None:
        """End the wait of whoever waits for `reader`: there is something to look at. From any thread."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def __exit__(self, *_: object) -> None:
        """Give back the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self.reader.close()
        self._writer.close()

    def watch(self, run: Path) -> None:
        """Look for the stop file of a run from here on; one that is there already was meant for an earlier start."""
        self._file = run / STOP_FILE
        self._seen = _identity(self._file)

    def listen(self, exchange: Callable[[], object]) -> None:
        """Call this at every look from here on: it exchanges requests with other launchers, and adds theirs to `came`."""
        self._listen = exchange

    def poll(self) -> None:
        """Take note of a stop file that is new, or was written again, and of what other launchers were asked."""
        self._poll_file()
        self._listen()

    def asked(self) -> bool:
        """Whether this launcher, or the job, was asked to stop by now."""
        self.poll()
        return bool(self.came)

    def asked_here(self) -> bool:
        """Whether this launcher was, whatever the job was."""
        return self.asked() and any(stop.here for stop in self.came)

    def _poll_file(self) -> None:
        if self._file is None or (seen := _identity(self._file)) == self._seen:
            return
        self._seen = seen
        if seen:
            for_good = read_stop(self._file) == Word.CANCELLED
            number, name = (signal.SIGINT, "`slipway stop`") if for_good else (signal.SIGTERM, "the stop file")
            self.came.append(Stop(time.monotonic(), number, name))

    def drain(self) -> None:
        """Empty `reader` after a wake-up."""
        with suppress(BlockingIOError):
            self.reader.recv(4096)

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a request comes. Returns whether there is one."""
        until = time.monotonic() + seconds
        while not self.came and (left := until - time.monotonic()) > 0:
            select.select([self.reader], [], [], min(left, TICK))
            self.drain()
            self.poll()
        return bool(self.came)

    @property
    def first(self) -> Stop | None:
        """The request that counts for how the job ends."""
        return self.came[0] if self.came else None

    @property
    def word(self) -> str:
        """The outcome that the first request asks for."""
        return STOP_WORDS[self.came[0].number] if self.came else Word.STOPPED

    @property
    def later(self) -> Stop | None:
        """A request that came after the same gesture lasts, and asks for haste."""
        return next((stop for stop in self.came if stop.at - self.came[0].at > SAME_STOP), None)

    @property
    def by(self) -> float:
        """By when this node should have left, by any of the requests."""
        return min((stop.by for stop in self.came), default=math.inf)

    @property
    def impatient(self) -> bool:
        """Whether its user asked twice to stop for good: nothing is waited for any longer. What the system asked is no request
        of theirs, so one Ctrl-C after a scheduler's signal leaves the grace as it is.
        """
        asked = [stop.at for stop in self.came if stop.number == signal.SIGINT]
        return any(at - asked[0] > SAME_STOP for at in asked)


def ask_to_stop(run: Path) -> None:
    """Ask all launchers of a run to stop for good, from any process that sees its directory. Raises OSError."""
    write_json(run / STOP_FILE, {"outcome": Word.CANCELLED, "time": time.time()})


def _identity(file: Path) -> tuple[int, ...]:
    """What changes when a file is written again, empty where there is none; never its age, since clocks differ."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def raise_flag(node_dir: Path, stop: Stop) -> str:
    """Tell this node's workers to stop. Returns why that is impossible, empty where it worked.

    On a full disk an empty flag often still fits, and means `stopped`; without any there will be no snapshot either.
    """
    flag = node_dir / STOP_FILE
    try:
        write_json(flag, {"outcome": STOP_WORDS[stop.number], "signal": stop.number.name, "name": stop.name})
    except OSError as error:
        try:
            touch_run_file(flag)
        except OSError:
            return str(error)
    return ""


# s that the other ranks have after one failed: ours have nothing to save then, and a script what torchrun alone would give it
AFTER_FAILURE, AFTER_FAILURE_OF_SCRIPT = 5.0, 30.0
STACKS = 1.0  # s that workers have for printing their stacks before they are killed


class Due(Enum):
    """What is to be done at a moment."""

    NOTHING = "nothing"
    STACKS = "stacks"  # let those that hang print their stacks
    KILL = "kill"


class Deadline:
    """By when this node's processes must have ended. Pure: what happened and the clock come in, what is due comes out.

    Moments are monotonic seconds. Whatever happens, the earliest end that anything asks for counts.

    `killed`: the grace of a stop was over before the workers had ended, though nothing had failed; `empty`: it was not waited
    for, since they had nothing to save.
    """

    def __init__(self, grace: float) -> None:
        """`grace` is how many seconds a stop leaves for a snapshot."""
        self._grace, self._at = grace, float("inf")
        self._stopping = self._failed = self._stuck = self._asked = False
        self.empty = False
        self.killed = False

    def stop(self, now: float) -> None:
        """The workers are asked to stop."""
        self._stopping, self._at = True, min(self._at, now + self._grace)

    def leave_by(self, moment: float) -> None:
        """The machine goes away soon after this moment, whatever the grace is."""
        self._at = min(self._at, moment)

    def nothing_to_save(self, now: float) -> None:
        """The workers, which were asked to stop, have nothing to save, and nobody needs their stacks."""
        self.empty, self._at = True, now

    def fail(self, now: float, seconds: float, gone: bool = False) -> None:
        """A worker failed, or another node; `gone`: it ended without a report, and the workers here wait for it in vain.

        They have so many `seconds`, unless they were asked to stop and may be saving: the grace bounds that.
        """
        self._failed, self._stuck = True, self._stuck or gone
        if not self._stopping:
            self._at = min(self._at, now + seconds)

    def hang(self, now: float) -> None:
        """No rank moves any more."""
        self._stuck, self._at = True, now

    def give_up(self, now: float) -> None:
        """Nothing can be saved any more."""
        self._at = now

    def left(self, now: float) -> float:
        """Seconds until the end."""
        return max(0.0, self._at - now)

    def due(self, now: float, *, impatient: bool) -> Due:
        """What to do now. `impatient`: its user asked again to stop for good. Stacks are asked for once."""
        if now <= self._at and not impatient:
            return Due.NOTHING
        self.killed = self.killed or (self._stopping and not self._failed)
        if (self._stuck or self.killed) and not (impatient or self._asked or self.empty):
            self._asked = True
            return Due.STACKS
        return Due.KILL

    def wait_for_stacks(self, now: float, seconds: float = STACKS) -> None:
        """The workers print them."""
        self._at = now + seconds
