"""`--launcher spawn`: the workers of one machine, started by hand with torch.multiprocessing instead of torchrun.

slipway linear --launcher spawn --world-size 2

Processes that train together need to know little of each other; `init_process_group` finds it in four variables:

MASTER_ADDR, MASTER_PORT   where rank 0 waits for the others                      the same for all, set by the launcher
WORLD_SIZE                 how many processes there are                           likewise (`slipway plan` shows them)
RANK                       which of them this one is, from 0 to WORLD_SIZE - 1    set below, by each for itself

torchrun sets the same for processes that it starts, on any number of machines. All else about a worker is equal.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing as mp

from slipway.process.watcher import ADDRESS, begin
from slipway.protocol.binding import move_to, own_cores, own_device
from slipway.train.worker.context import open_context

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_worker(rank: int, world_size: int, workload: str, args: Sequence[str]) -> None:
    """Be one worker. mp.spawn calls this in a new Python process, with the number of the process as first argument."""
    os.environ["RANK"] = str(rank)
    os.environ["LOCAL_RANK"] = str(rank)  # which GPU is ours; on a single machine the same number
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    os.environ.update(own_device(os.environ, rank))  # read when CUDA starts, which importing torch does not
    move_to(own_cores(os.environ, rank))
    # Never outlive the parent. torch has a SIGINT sent in that case, which workers of the launcher ignore.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    write_to_launcher(rank)
    if ADDRESS in os.environ:  # slipway.pth does it where a process finds its rank at its start
        begin()
    # It calls init_process_group in train/worker/place.py, and when all are done destroy_process_group.
    with open_context(abandon=True) as context:
        import_module(f"slipway.train.workloads.{workload}").train(context, list(args))


def main() -> int:
    """Start the workers and see them through to their end; 0, or 1 where one failed."""
    workload, *args = sys.argv[1:]
    world_size = int(os.environ["WORLD_SIZE"])
    # Each worker is a new interpreter that imports this file again, hence the last lines of it. A fork would be faster,
    # but CUDA does not work in it, and neither do threads that the parent had.
    workers = mp.spawn(run_worker, (world_size, workload, args), nprocs=world_size, join=False)  # type: ignore[attr-defined, no-untyped-call]
    send_event(event="started", pids=dict(enumerate(workers.pids())))
    # With join=True mp.spawn would wait itself, and kill all others once one fails: but they may be saving. Here the
    # launcher is told, and gives them time.
    failed = False
    for ranks in as_they_end(workers.processes):
        for rank in ranks:
            if workers.processes[rank].exitcode == 0:
                send_event(event="left", rank=rank, time=time.time())
        ended = {rank: workers.processes[rank] for rank in ranks}
        failures = [
            {"rank": rank, "local_rank": rank, "pid": one.pid, "exitcode": one.exitcode, "time": time.time()}
            for rank, one in ended.items()
            if one.exitcode  # negative for a signal
        ]
        if failures and not failed:
            failed = True
            send_event(event="failed", failures=failures)
    return int(failed)


def as_they_end(processes: Sequence[BaseProcess]) -> Iterator[list[int]]:
    """The numbers of the processes, those together that ended at the same time."""
    running = {process.sentinel: number for number, process in enumerate(processes)}
    while running:
        ended = [running.pop(sentinel) for sentinel in wait(list(running)) if isinstance(sentinel, int)]
        for number in ended:
            processes[number].join()
        yield ended


def send_event(**event: Any) -> None:
    """Tell the launcher, which holds the other end of this pipe."""
    os.write(int(os.environ["SLIPWAY_EVENTS"]), (json.dumps(event) + "\n").encode())


def write_to_launcher(rank: int) -> None:
    """Write stdout and stderr into the launcher's pipes for this rank. The parent holds them: a new process inherits none."""
    parent, pipes = parent_process(), os.environ["SLIPWAY_PIPES"].split(",")
    for own, pipe in zip((1, 2), pipes[2 * rank : 2 * rank + 2], strict=True):
        there = os.open(f"/proc/{parent.pid if parent else 'self'}/fd/{pipe}", os.O_WRONLY)
        os.dup2(there, own)
        os.close(there)


if __name__ == "__main__":
    sys.exit(main())
