"""Workers that begin before torchrun has told who they are, and import their workload meanwhile.

Importing torch takes seconds, under torchrun first in its own process and then once more in each worker. Our own workloads
begin theirs at once, as `python -m slipway.warm_workers MODULE ARGUMENTS…`, and wait on stdin for the variables that torchrun has
for them. A user's program starts when torchrun starts it: it may set variables itself before it imports torch.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from slipway.protocol.binding import on_cores, own_cores, own_device
from slipway.watcher import ADDRESS

Worker = subprocess.Popen[bytes]


@contextmanager
def no_collection() -> Iterator[None]:
    """Import without looking for garbage: that takes a tenth of the time that torch needs, and finds next to nothing."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def begin(command: Sequence[str], first_rank: int, world_size: int, pipes: Sequence[int]) -> list[Worker]:
    """Begin what torchrun is about to start, `… -m MODULE ARGUMENTS…`, with two of the pipes as each one's stdout and stderr."""
    at = command.index("-m") + 1
    words = [*command[:at], "slipway.warm_workers", *command[at:]]
    counts = {"WORLD_SIZE": f"{world_size}", "LOCAL_WORLD_SIZE": f"{len(pipes) // 2}"}
    workers = []
    for local, (out, error) in enumerate(zip(pipes[::2], pipes[1::2], strict=True)):
        # What a site's own start-up code (sitecustomize.py) may tell workers by.
        place = {"RANK": f"{first_rank + local}", "LOCAL_RANK": f"{local}", **counts}
        environ = {**os.environ, **place, **own_device(os.environ, local)}
        with on_cores(own_cores(os.environ, local)):
            workers.append(
                Worker(words, env=environ, stdin=subprocess.PIPE, stdout=out, stderr=error, start_new_session=True)
            )
    return workers


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
        return 1  # torchrun came to its end before it started workers, and has said why
    os.environ.update(json.loads(variables))
    os.environ.pop(ADDRESS, None)  # this process has its watcher already
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    sys.argv = [module, *arguments]
    workload.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
