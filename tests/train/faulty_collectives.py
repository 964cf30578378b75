"""A worker whose collectives have faults, which FAULTS in its environment holds as JSON.

slow     [rank, seconds]: by a clock that nothing else moves this rank takes so long to write its numbers, the others 1 ms
wrong    [rank, "collective", size in bytes]: there this rank finds one number changed
lacking  "name": the back end has no such function of torch.distributed
stop     number: the launcher's stop flag is raised before that measurement
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faulty_worker
import torch.distributed as dist
from simulated_time import StepClock
from training_jobs import raise_stop_flag

from slipway.train.measure.collectives import CollectiveBuffers
from slipway.train.worker.context import Context
from slipway.train.workloads import allreduce


def break_buffers(faults: Mapping[str, Any]) -> None:
    slow, wrong = faults.get("slow"), faults.get("wrong")
    real_fill, real_run, clock = CollectiveBuffers.fill, CollectiveBuffers.run, StepClock()
    if slow:
        allreduce.time = SimpleNamespace(perf_counter=clock.host)  # type: ignore[assignment]

    def fill(buffers: CollectiveBuffers) -> None:
        real_fill(buffers)
        if slow:
            clock.time += slow[1] if buffers.rank == slow[0] else 0.001

    def run(buffers: CollectiveBuffers) -> None:
        real_run(buffers)
        size = max(buffers.given.nbytes, buffers.result.nbytes)
        if [buffers.rank, buffers.collective, size] == wrong:
            buffers.result[-1] += 1

    CollectiveBuffers.fill, CollectiveBuffers.run = fill, run  # type: ignore[method-assign]


def stop_before(number: int, folder: Path) -> None:
    real, asked = Context.agree, [0]

    def agree(context: Context, late: bool = False) -> tuple[str | None, bool]:
        asked[0] += 1
        if asked[0] == number and context.place.rank == 0:
            raise_stop_flag(folder)
        context.wait_for_all()
        return real(context, late)

    Context.agree = agree  # type: ignore[method-assign]


def work(environment: Mapping[str, str], log: str, workload: str, args: Sequence[str]) -> None:
    """Be the worker that `environment` says, in a process of its own; all that it prints goes to the file `log`."""
    faults = json.loads(environment["FAULTS"])
    break_buffers(faults)
    if name := faults.get("lacking"):

        def refuse(*_: object) -> None:
            raise NotImplementedError(f"Backend gloo does not support {name}\nand more")

        setattr(dist, name, refuse)
    if "stop" in faults:
        stop_before(faults["stop"], Path(environment["SLIPWAY_RUN_DIR"]))
    faulty_worker.work({**environment, "FAULTS": "{}"}, log, workload, args)
