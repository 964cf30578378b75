"""A process that was started as the next attempt's script, and waits before the script's first line with torch imported.

It is started with a worker's command. slipway.pth calls `begin` before Python reads the script. A process that
is forked from this one returns from `begin`, and then Python itself runs the script. So arguments, sys.path, `__main__` and
flags are those of a cold start. The launcher starts this process once the ranks of an attempt have imported torch
(launch/attempt/warm_standby.py).
"""

import _thread
import os
import sys

from slipway.process.imports import import_aside
from slipway.process.preloaded import Preloaded
from slipway.process.watcher import ADDRESS, STANDBY

TYPE_CHECKING = False  # what is imported here would not come in the program's order
if TYPE_CHECKING:
    from typing import Any

AGENTS = (
    "torch.distributed.run",
    "torch.distributed.launcher.api",
    "slipway.process.agent",
    "slipway.process.standby",
    "gc",
)
NICE = 10  # of the thread that imports


def begin() -> None:
    """Wait for attempts as the environment says. Returns in a worker, whose script follows."""
    try:
        stand_by(os.environ[ADDRESS].removeprefix(STANDBY))
    except BaseException as error:  # the script must not begin here
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


def stand_by(words: str) -> None:
    """Wait for attempts. Returns in a worker, whose script follows; an agent ends here.

    `words`: the numbers of the link to the launcher, of the launcher's process and of a file with the modules that the script's
    first attempt had when it had imported torch: how many of them before, then a name, a tab and a file in each line.

    Raises PermissionError in a process that this launcher has not started.
    """
    link, launcher, learned = map(int, words.split(","))
    if os.getppid() != launcher:  # whatever set the variable
        raise PermissionError(f"process {launcher} has not started this one")
    open_here = OpenHere(spared=(link, learned))
    with open(learned, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # no more imports
        early = int(file.readline())
        order = [(name, where) for name, _, where in (line.rstrip("\n").partition("\t") for line in file)]
    for name in ("SLIPWAY_WATCHER", "LOCAL_RANK"):
        os.environ.pop(name, None)
    # It runs slipway.pth, so its import has not ended, and the thread that imports would wait for that for ever.
    sys.modules["site"].__spec__._initializing = False  # type: ignore[union-attr]
    preloaded = Preloaded(order, early)
    preloaded.load("threading")  # here: a thread that imports it would count as the main one
    why = preload(preloaded)
    if why:
        os.write(link, f"0 {why}\n".encode()[:4096])
        os._exit(0)
    serve(preloaded, open_here, link, launcher)


class OpenHere:
    """The files that Python has open as it comes here, slipway.pth that is: it reads on when a worker returns."""

    def __init__(self, spared: "tuple[int, ...]") -> None:
        self._files = {}
        for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208
            number = int(entry)
            try:
                if number > 2 and number not in spared:
                    self._files[number] = os.readlink(f"/proc/self/fd/{number}"), os.lseek(number, 0, os.SEEK_CUR)  # noqa: PTH115
            except OSError:  # the listing's own
                pass

    def open_again(self) -> None:
        """Under the same numbers, at the same places."""
        for number, (path, place) in self._files.items():
            try:
                opened = os.open(path, os.O_RDONLY)
                os.lseek(opened, place, os.SEEK_SET)
            except OSError:
                opened = os.open(os.devnull, os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number, inheritable=False)
                os.close(opened)


def preload(preloaded: Preloaded) -> str:
    """Import everything, at a low priority; empty, or why it is no use."""
    found, done = list[str](), _thread.allocate_lock()
    done.acquire()

    def load() -> None:
        lower_priority()
        try:
            found.append(preloaded.load_all() or printed())
            for name in AGENTS:  # what these and torchrun's plugins print, the first attempt's agent has printed
                preloaded.load(name, aside=True)
        except BaseException as error:
            found.insert(0, f"{type(error).__name__}: {error}")
        done.release()

    gc = import_aside("gc")
    gc.disable()
    _thread.start_new_thread(load, ())
    done.acquire()
    gc.freeze()
    gc.enable()
    return found[0]


def printed() -> str:
    """Why what has been imported is no use if it printed something: the first line of that. Empty where it printed nothing."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    text = os.pread(1, 300, 0).decode(errors="replace").strip()
    return text and f"importing torch prints {text.splitlines()[0]!r}"


def lower_priority() -> None:
    """Let this thread be no burden to the attempt that runs; Linux has a priority for each thread."""
    try:  # noqa: SIM105  # no more imports
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    except OSError:  # no more imports
        pass


def serve(preloaded: Preloaded, open_here: OpenHere, link: int, launcher: int) -> None:
    """Be the standby. Returns in a worker."""
    import signal
    import socket
    from functools import partial

    from slipway.process.agent import begin_again
    from slipway.process.standby import Standby
    from slipway.process.tree import read_command_line

    def load(module: str) -> None:
        lower_priority()
        preloaded.load(module)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    worker = partial(become, preloaded, open_here, read_command_line(), handlers)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # as an agent has them
    work = Standby(socket.socket(fileno=link), launcher, partial(begin_again, script=worker), load).serve()
    code = work()
    if code >= 0:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def become(
    preloaded: Preloaded, open_here: OpenHere, command_line: bytes, handlers: "dict[int, Any]", reader: int
) -> int:
    """Be a worker, once the variables come from `reader`. Returns -1: the script follows."""
    import gc
    import json
    import signal

    from slipway.process import warm, watcher
    from slipway.process.tree import write_command_line

    write_command_line(command_line)
    become_another()
    warm.seed_anew()
    with open(reader, "rb") as file:
        line = file.readline()
    if not line:
        os._exit(1)  # torchrun ended before it started workers, and has said why
    open_here.open_again()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    environ: dict[str, str] = json.loads(line)
    os.environ.clear()
    os.environ.update(environ)
    gc.unfreeze()
    start_over = StartOver(environ, signal)
    preloaded.hide()
    if name := preloaded.misses():
        start_over(f"{name} is not what it was")
    if watcher.ADDRESS in environ:
        watcher.begin(observed=False)
    preloaded.offer(start_over)
    return -1


def become_another() -> None:
    """Have of one's own what a process has from its start, and a fork from the process that it was forked from."""
    import logging
    import multiprocessing
    import threading
    import time

    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # before Python 3.12 a fork keeps that of its parent
    multiprocessing.current_process().authkey = os.urandom(32)
    now: Any = time.time_ns() if isinstance(logging._startTime, int) else time.time()  # type: ignore[attr-defined]
    logging._startTime = now  # type: ignore[attr-defined]


class StartOver:
    """Called with a reason: replaces this process by one that has imported nothing, where the script had no torch so far."""

    def __init__(self, environ: "dict[str, str]", signals: "Any") -> None:
        self._environ, self._owner, self._folder = environ, os.getpid(), os.getcwd()  # noqa: PTH109
        self._cores, self._mask = os.sched_getaffinity(0), os.umask(0o22)
        os.umask(self._mask)
        self._signals, self._blocked = signals, signals.pthread_sigmask(signals.SIG_BLOCK, [])

    def __call__(self, why: str) -> None:
        """Say so, and do so."""
        say = f"slipway: rank {self._environ.get('RANK')}: {why}"
        if os.getpid() != self._owner or "torch" in sys.modules:
            os.write(2, f"{say}, which has no effect in a warm restart. Set SLIPWAY_WARM=0\n".encode())
            return
        os.write(2, f"{say}: the script begins again with a new import of torch\n".encode())
        for stream in (sys.stdout, sys.stderr):
            try:  # noqa: SIM105
                stream.flush()
            except Exception:  # noqa: S110  # the program's own stream, or None
                pass
        os.chdir(self._folder)
        os.umask(self._mask)
        os.sched_setaffinity(0, self._cores)
        self._signals.pthread_sigmask(self._signals.SIG_SETMASK, self._blocked)
        os.execve(sys.executable, sys.orig_argv, self._environ)  # noqa: S606
