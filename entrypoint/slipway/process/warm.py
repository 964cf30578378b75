"""Workers that begin before torchrun has their variables, and import their workload meanwhile.

Importing torch takes seconds, under torchrun first in its own process and then once more in each worker. In a job's first attempt
our own workloads begin theirs at once, as `python -m slipway.process.warm MODULE ARGUMENTS…`; later ones are forked from an agent
that was itself forked from the standby (standby.py). Both wait on stdin for the variables that torchrun has for them. A user's
program starts when torchrun starts it: it may set variables itself before it imports torch.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO

from slipway.process import watcher
from slipway.process.tree import Forked, close_files, end_with, rename_process
from slipway.protocol.binding import move_to, on_cores, own_cores, own_device

Worker = subprocess.Popen[bytes] | Forked
Work = Callable[[], int]
Script = Callable[[int], int]  # becomes a script's worker, with variables from a file of this number


@contextmanager
def no_collection() -> Iterator[None]:
    """Import without looking for garbage: that takes a tenth of the time that torch needs, and finds next to nothing."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@dataclass(frozen=True)
class WorkerGroup:
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

    def fork(self, script: Script | None = None) -> list[Worker] | Work:
        """Fork them from this process, which has imported everything. In a worker, returns what it has to do."""
        if not (script or (self.command and is_forkable(os.environ))):
            return self.begin()
        agent, workers, ends = os.getpid(), list[Worker](), list[IO[bytes]]()
        for local, streams in enumerate(self._streams):
            reader, writer = os.pipe()
            worker = os.fork()
            if not worker:
                for end in ends:
                    end.close()  # its number is another file's from here on
                if script:
                    return self._become_script(script, agent, local, (reader, *streams))
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

    def _become_script(self, script: Script, agent: int, local: int, streams: tuple[int, ...]) -> Work:
        """As torchrun starts one: the agent's stdin is that of local rank 0."""
        end_with(agent, signal.SIGKILL)
        os.setsid()
        reader, out, error = streams
        with Path(os.devnull).open() as nothing:
            for number, stream in enumerate((nothing.fileno() if local else 0, out, error)):
                os.dup2(stream, number)
        close_files((reader, *self.files))
        move_to(own_cores(os.environ, local))
        return partial(script, reader)

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
    if numpy_random := sys.modules.get("numpy.random"):  # numpy 2 imports it when it is first used
        numpy_random.seed()


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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
