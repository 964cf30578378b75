"""The standby: a process from which the next attempt's agent is forked, with all that it needs imported already."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from slipway.process.tree import FILES, LENGTH, close_files, end_with, rename_process
from slipway.process.warm import Work, Worker, no_collection

# From an agent's words to what is to be done, in that agent or in a worker forked from it.
Begin = Callable[[Sequence[str]], Work]


def fork_standby(link: int, launcher: int, workers: Sequence[Worker], begin: Begin) -> Work | None:
    """Fork the standby. Returns None; in what is forked from it later, what that has to do.

    `workers` are those that this process has begun.
    """
    if os.fork():
        return None  # when this process ends it becomes its reaper's child, and then the launcher's
    for worker in workers:  # they are another's children
        assert worker.stdin
        worker.stdin.close()
        worker.returncode = 0
    return Standby(socket.socket(fileno=os.dup(link)), launcher, begin).serve()


class Standby:
    """The process from which the next attempts are forked, and its one `link`, to the launcher.

    Importing torch, torch._dynamo (otherwise the first DistributedDataParallel does, for seconds) and a workload takes most of a
    restart. This process is forked from the first attempt's agent before that has a thread, so that they share what they
    imported, and lasts to the job's end. It runs no tensor operation, since a child of a parent that used OpenMP hangs at its
    first product, and has no CUDA context. The launcher sends it, through a socket, a request `{"load": MODULE}` once the job
    makes steps, then one per attempt with the words, the variables and the open files of the agent that it would start otherwise
    (launch/attempt/warm_standby.py).
    """

    def __init__(
        self, link: socket.socket, launcher: int, begin: Begin, load: Callable[[str], None] | None = None
    ) -> None:
        """Become it: in a session of its own, with no file open but the link. `load` imports what it is asked to."""
        self._link, self._launcher, self._begin, self._load = link, launcher, begin, load or globals()["load"]
        self._loading: Thread | None = None
        if os.getsid(0) != os.getpid():
            os.setsid()
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        close_files([link.fileno()])
        rename_process("slipway.process.standby", str(launcher))
        link.sendall(f"{os.getpid()}\n".encode())

    def serve(self) -> Work:
        """Answer the launcher's requests until it is gone. Returns in a child, with what that has to do."""
        while True:
            request, files = self._listen()
            if "load" in request:
                self._loading = Thread(target=self._load, args=(request["load"],))
                self._loading.start()
            elif work := self._answer(request, files):
                return work

    def _listen(self) -> tuple[dict[str, Any], list[int]]:
        """The next request, with its files."""
        if request := receive_request(self._link):
            return request
        os._exit(0)  # the launcher is gone, or wants us no more

    def _answer(self, request: dict[str, Any], files: list[int]) -> Work | None:
        """Fork an agent, the launcher's own child."""
        if self._loading:
            if self._loading.is_alive():
                weigh_session(0)  # the attempt that was not to be slowed down is over
            self._loading.join()
        end_with(self._launcher, signal.SIGKILL)  # whose child it is by now
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for number in files:
                os.close(number)
            return None
        own = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == own:
            time.sleep(0.001)  # until the process between has ended, and the launcher is the parent
        os.setsid()
        self._link.sendall(f"{os.getpid()}\n".encode())
        self._link.close()
        take_numbers(dict(zip(files, request["files"], strict=True)))
        os.environ.clear()
        os.environ.update(request["environ"])
        words = request["words"]
        rename_process(*words[words.index("slipway.process.agent") :])
        return self._begin(words[words.index("slipway.process.agent") + 1 :])


def receive_request(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request and its files, which come with its length; None where the other end is closed.

    No more than the request is read: the files of the next one would be lost.
    """
    text, size, files = bytearray(), -1, list[int]()
    with suppress(ConnectionError):
        head, files, *_ = socket.recv_fds(link, LENGTH, FILES)
        size = int.from_bytes(head, "big") if head else -1
        while len(text) < size and (chunk := link.recv(size - len(text))):
            text += chunk
    return (json.loads(text), files) if len(text) == size else None


NICE = 10  # of the thread that imports, and where the kernel weighs sessions, of this one


def load(module: str) -> None:
    """Import what the next attempt needs, at a low priority, so that this one is not slowed down; Linux has one per thread."""
    weigh_session(NICE)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    with no_collection():
        for name in ("torch._dynamo", *([module] if module else [])):
            with suppress(Exception):  # whatever needs it meets the error itself
                import_module(name)
    weigh_session(0)


def weigh_session(nice: int) -> None:
    """The same for this session, where the kernel weighs sessions against each other (sched(7), autogroup)."""
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{nice}")


def take_numbers(wanted: dict[int, int]) -> None:
    """Give open files the numbers that they have in the launcher; all are inherited by programs from here on, as there."""
    above = max([*wanted, *wanted.values()], default=0) + 1
    aside = {os.dup2(number, above + at): to for at, (number, to) in enumerate(wanted.items())}
    for number in wanted:
        os.close(number)
    for number, to in aside.items():
        os.dup2(number, to)
        os.close(number)
