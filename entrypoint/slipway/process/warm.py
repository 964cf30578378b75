"""Processes that have imported what they need before they are needed: workers that begin before torchrun has their variables, and
the parked process from which the next attempt's agent is forked.

Importing torch takes seconds, under torchrun first in its own process and then once more in each worker. In a job's first attempt
our own workloads begin theirs at once, as `python -m slipway.process.warm MODULE ARGUMENTS…`; later ones are forked from an agent
that was itself forked from the parked process. Both wait on stdin for the variables that torchrun has for them. A user's program
starts when torchrun starts it: it may set variables itself before it imports torch.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import IO, Any

from slipway.process import watcher
from slipway.process.tree import FILES, Forked, close_files, end_with, rename_process
from slipway.protocol.binding import move_to, on_cores, own_cores, own_device

Worker = subprocess.Popen[bytes] | Forked
Work = Callable[[], int]
# From an agent's words to what is to be done, in that agent or in a worker forked from it.
Begin = Callable[[Sequence[str]], Work]


@contextmanager
def no_collection() -> Iterator[None]:
    """Import without looking for garbage: that takes a tenth of the time that torch needs, and finds next to nothing."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@dataclass(frozen=True)
class Crew:
    """The workers that torchrun is about to start by `… -m MODULE ARGUMENTS…` (no words: by another command, which waits for
    it), two of the `pipes` as stdout and stderr of each, the first one's rank, and how many there are on all nodes."""

    command: Sequence[str]
    first_rank: int
    world_size: int
    pipes: Sequence[int]
    files: Sequence[int] = ()  # more that is open in them

    @property
    def words(self) -> list[str]:
        """The module and its arguments."""
        return [*self.command[self.command.index("-m") + 1 :]] if self.command else []

    def begin(self) -> list[Worker]:
        """Start them."""
        if not self.command:
            return []
        words = [*self.command[: -len(self.words)], "slipway.process.warm", *self.words]
        workers: list[Worker] = []
        for local, (out, error) in enumerate(self._streams):
            with on_cores(own_cores(os.environ, local)):
                workers.append(
                    subprocess.Popen(
                        words,
                        env={**os.environ, **self._place(local)},
                        stdin=subprocess.PIPE,
                        stdout=out,
                        stderr=error,
                        start_new_session=True,
                        pass_fds=self.files,
                    )
                )
        return workers

    def fork(self) -> list[Worker] | Work:
        """Fork them from this process, which has imported everything. In a worker, returns what it has to do."""
        if not (self.command and is_forkable(os.environ)):
            return self.begin()
        agent, workers, ends = os.getpid(), list[Worker](), list[IO[bytes]]()
        for local, streams in enumerate(self._streams):
            reader, writer = os.pipe()
            worker = os.fork()
            if not worker:
                for end in ends:
                    end.close()  # its number is another file's from here on
                return self._become(agent, local, (reader, *streams))
            os.close(reader)
            ends.append(os.fdopen(writer, "wb"))
            workers.append(Forked(worker, ends[-1]))
        return workers

    @property
    def _streams(self) -> Iterator[tuple[int, int]]:
        return zip(self.pipes[::2], self.pipes[1::2], strict=True)

    def _place(self, local: int) -> dict[str, str]:
        """What a site's own start-up code (sitecustomize.py) may distinguish workers by, and its device."""
        counts = {"WORLD_SIZE": f"{self.world_size}", "LOCAL_WORLD_SIZE": f"{len(self.pipes) // 2}"}
        own = own_device(os.environ, local)
        return {"RANK": f"{self.first_rank + local}", "LOCAL_RANK": f"{local}", **counts, **own}

    def _become(self, agent: int, local: int, streams: tuple[int, ...]) -> Work:
        end_with(agent, signal.SIGKILL)
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        close_files(self.files)
        os.environ.update(self._place(local))
        move_to(own_cores(os.environ, local))
        rename_process("slipway.process.warm", *self.words)
        seed_anew()
        if watcher.ADDRESS in os.environ:  # as slipway.pth does where a Python begins
            watcher.begin()
        return partial(main, *self.words)


# These tell libgomp, when it is loaded, where to place its threads; without OMP_NUM_THREADS it counts cores then.
PLACED = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def is_forkable(environ: Mapping[str, str]) -> bool:
    """Whether a forked worker has as many threads, on the same cores, as one that was started for itself."""
    return bool(environ.get("OMP_NUM_THREADS")) and not any(environ.get(name) for name in PLACED)


def seed_anew() -> None:
    """Give this process random numbers of its own, unless the program seeds them; Python's own module does that at a fork."""
    sys.modules["torch"].default_generator.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def release(worker: Worker, variables: Mapping[str, str]) -> None:
    """Let a worker go to work. One that is dead already is for torchrun to notice."""
    assert worker.stdin is not None
    with suppress(BrokenPipeError), worker.stdin:
        worker.stdin.write(f"{json.dumps(dict(variables))}\n".encode())


def main(module: str, *arguments: str) -> int:
    """Be a worker."""
    with no_collection():
        workload = import_module(module)
    variables = sys.stdin.readline()
    if not variables:
        return 1  # torchrun ended before it started workers, and has said why
    os.environ.update(json.loads(variables))
    os.environ.pop(watcher.ADDRESS, None)  # this process has its watcher already
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    sys.argv = [module, *arguments]
    workload.main()
    return 0


def leave_behind(link: int, launcher: int, workers: Sequence[Worker], begin: Begin) -> Work | None:
    """Fork the parked process. Returns None; in what is forked from it later, what that has to do.

    `workers` are those that this process has begun.
    """
    if os.fork():
        return None  # when this process ends it becomes its reaper's child, and then the launcher's
    for worker in workers:  # they are another's children
        assert worker.stdin
        worker.stdin.close()
        worker.returncode = 0
    return Parked(socket.socket(fileno=os.dup(link)), launcher, begin).serve()


class Parked:
    """The process from which the next attempts are forked, and its one `link`, to the launcher.

    Importing torch, torch._dynamo (otherwise the first DistributedDataParallel does, for seconds) and a workload takes most of a
    restart. This process is forked from the first attempt's agent before that has a thread, so that they share what they
    imported, and lasts to the job's end. It runs no tensor operation, since a child of a parent that used OpenMP hangs at its
    first product, and has no CUDA context. The launcher sends it, through a socket, a line `{"load": MODULE}` once the job makes
    steps, then one line per attempt with the words, the variables and the open files of the agent that it would start otherwise
    (launch/attempt/lasting.py).
    """

    def __init__(self, link: socket.socket, launcher: int, begin: Begin) -> None:
        """Become it: in a session of its own, with no file open but the link."""
        self._link, self._launcher, self._begin = link, launcher, begin
        self._loading: Thread | None = None
        os.setsid()
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        close_files([link.fileno()])
        rename_process("slipway.process.warm", str(launcher))
        link.sendall(f"{os.getpid()}\n".encode())

    def serve(self) -> Work:
        """Answer the launcher's requests until it is gone. Returns in a child, with what that has to do."""
        while True:
            request, files = self._listen()
            if "load" in request:
                self._loading = Thread(target=load, args=(request["load"],))
                self._loading.start()
            elif work := self._answer(request, files):
                return work

    def _listen(self) -> tuple[dict[str, Any], list[int]]:
        """The next request, with its files."""
        text, files = bytearray(), list[int]()
        with suppress(ConnectionError):
            text[:], files, *_ = socket.recv_fds(self._link, 1, FILES)
            while not text.endswith(b"\n") and (chunk := self._link.recv(65_536)):
                text += chunk
        if not text.endswith(b"\n"):
            os._exit(0)  # the launcher is gone, or wants us no more
        request: dict[str, Any] = json.loads(text)
        return request, files

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
            time.sleep(0.001)
        os.setsid()
        self._link.sendall(f"{os.getpid()}\n".encode())
        self._link.close()
        take_numbers(dict(zip(files, request["files"], strict=True)))
        os.environ.clear()
        os.environ.update(request["environ"])
        words = request["words"]
        rename_process(*words[words.index("slipway.process.agent") :])
        return self._begin(words[words.index("slipway.process.agent") + 1 :])


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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
