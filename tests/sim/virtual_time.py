"""Virtual time for the simulation: an asyncio loop whose clock jumps to the next event, and processes that run on it.

A simulated process consists of callbacks on the loop and of at most one program of ordinary blocking code. It can be
killed, frozen and thawed. Nothing here reads the clock of this machine, so a simulation is the same every time.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

HERE: ContextVar[Process | None] = ContextVar("HERE", default=None)  # the process whose code runs
BUSY = 20_000  # rounds of the loop within one moment; a job of five nodes takes some hundreds
Log = Callable[[str, str], None]  # takes who, and what


class StuckError(Exception):
    """No timer is set and nothing is ready: the simulation would wait for ever."""


class Killed(BaseException):  # no error: it unwinds the program of a killed process, past `except Exception`
    """Raised in the program of a process that was killed."""


class Process:
    """An operating-system process on a machine with this address."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.alive, self.frozen = True, False
        self._held: list[_Guarded] = []  # callbacks that were due while it was frozen
        self._at_death: list[Callable[[], None]] = []

    def is_alive(self) -> bool:
        """What threading.Thread calls it."""
        return self.alive

    def at_death(self, act: Callable[[], None]) -> None:
        """Call this when the process is killed."""
        self._at_death.append(act)

    def kill(self) -> None:
        """End it at once: none of its callbacks runs any more, and none of its clean-up reaches anybody."""
        self.alive, self._held = False, []
        for act in self._at_death:
            act()

    def freeze(self) -> None:
        """Stop it, as SIGSTOP does: what becomes due waits."""
        self.frozen = True

    def thaw(self, loop: VirtualLoop) -> None:
        """Let it run again; what was due while it was frozen runs first, in order."""
        self.frozen = False
        held, self._held = self._held, []
        for guarded in held:
            loop.call_unguarded(guarded)

    def hold(self, guarded: _Guarded) -> None:
        """Keep a callback until the process is thawed."""
        self._held.append(guarded)


class _Guarded:
    """A callback of a process, which runs only while the process does."""

    def __init__(
        self, process: Process, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self._process, self._callback, self._args, self.context = process, callback, args, context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if not self._process.alive or (self.handle and self.handle.cancelled()):
            return
        if self._process.frozen:
            self._process.hold(self)
        else:
            self._callback(*self._args)


class _NoFiles(selectors.BaseSelector):
    """A selector to which nothing ever happens: waiting moves the clock."""

    def __init__(self) -> None:
        self.now, self._at_once = 0.0, 0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return self._keys[number]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Any:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("nothing will ever happen any more")
        self._at_once = 0 if timeout > 0 else self._at_once + 1
        if self._at_once > BUSY:
            raise StuckError("something is done again and again, and no time passes")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop with a clock of its own."""

    def __init__(self) -> None:
        self._files = _NoFiles()
        super().__init__(self._files)
        self._clock_resolution = 1e-9
        self._tasks: list[asyncio.Task[Any]] = []
        self.trouble: list[BaseException] = []  # errors that nobody awaited
        super().set_exception_handler(self._note)

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._files.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """As asyncio's, but held back while the process that calls is frozen."""
        return self._guard(
            lambda call, context: super(VirtualLoop, self).call_soon(call, context=context), callback, args, context
        )

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """There is only one thread at a time."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, but held back while the process that calls is frozen."""
        return self._guard(
            lambda call, context: super(VirtualLoop, self).call_at(when, call, context=context), callback, args, context
        )

    def call_unguarded(self, guarded: _Guarded) -> None:
        """Run a callback that was held back."""
        super().call_soon(guarded, context=guarded.context)

    def set_exception_handler(self, handler: Any) -> None:
        """Launchers set one that prints a line; here such an error fails the simulation."""

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        """As asyncio's. Tasks are kept: what a killed process left must not come to its end when memory is collected."""
        task = super().create_task(coro, **more)
        self._tasks.append(task)
        return task

    def end(self) -> None:
        """Drop all that is left, and close the loop. What is left belongs to processes that were killed."""

        async def drop() -> None:
            for task in self._tasks:
                if not task.done() and task is not asyncio.current_task():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
                    with suppress(RuntimeError):  # its clean-up awaits something
                        task.get_coro().close()  # type: ignore[union-attr]

        self.run_until_complete(drop())
        self._tasks.clear()
        self.close()

    def _guard(self, schedule: Any, callback: Callable[..., object], args: tuple[Any, ...], context: Any) -> Any:
        context = copy_context() if context is None else context  # an empty one is false
        process = context.get(HERE)
        if process is None:
            return schedule(lambda: callback(*args), context)
        guarded = _Guarded(process, callback, args, context)
        guarded.handle = schedule(guarded, context)
        return guarded.handle

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = HERE.get()
        if (error := context.get("exception")) and (process is None or process.alive):
            self.trouble.append(error)


class Program:
    """Blocking code of a process, in a thread of its own that runs only while the loop waits for it."""

    def __init__(self, loop: VirtualLoop, process: Process, main: Callable[[], None], console: Console) -> None:
        self._loop, self._process, self._main, self._console = loop, process, main, console
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        context = copy_context()
        context.run(HERE.set, process)
        self._context = context
        self._thread = threading.Thread(target=context.copy().run, args=(self._run,), daemon=True)
        process.at_death(self._step)
        loop.call_soon(self._start, context=context)

    def block(self, future: asyncio.Future[Any]) -> None:
        """Called by the program: wait until the future is done."""
        if not self._process.alive:
            raise Killed
        future.add_done_callback(lambda _: self._step(), context=self._context)
        self._back.release()
        self._go.acquire()
        if not self._process.alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        """Called by the program: wait for some time."""
        done = self._loop.create_future()
        self._loop.call_later(seconds, done.set_result, None, context=self._context)
        self.block(done)

    def _start(self) -> None:
        self._thread.start()
        self._step()

    def _step(self) -> None:
        """Let the program run until it waits again, or ends."""
        if self._ended or self._thread.ident is None:
            return
        self._go.release()
        self._back.acquire()
        self._console.flush(self._process.name)
        if self._ended:
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._main()
        except Killed:
            pass
        except BaseException as error:  # a bug of the simulation or of the product: the simulation ends with it
            self._loop.trouble.append(error)
        finally:
            self._ended = True
            self._back.release()


def is_on_loop() -> bool:
    """Whether a callback or coroutine calls, and not a program."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Console:
    """Takes what programs print on stderr into the log of events."""

    def __init__(self, log: Log) -> None:
        self._log, self._file = log, os.memfd_create("console")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Stand in for stderr."""
        before = sys.stderr
        with os.fdopen(self._file, "w", closefd=True) as sys.stderr:
            try:
                yield
            finally:
                sys.stderr = before

    def flush(self, name: str) -> None:
        """Put what was printed since the last time into the log, under the name of who printed it."""
        size = os.lseek(self._file, 0, os.SEEK_CUR)
        if not size:
            return
        for line in os.pread(self._file, size, 0).decode(errors="replace").splitlines():
            self._log(name, line.removeprefix("slipway: "))
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
