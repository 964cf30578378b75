"""One of our workloads as `slipway selftest` trains it: the same on every run, and with a rank that fails where one is to.

python -m slipway.train.workloads.selftest FAULT WORKLOAD [options of the workload]

The fault happens on the last rank, once in the optimizer's third step: the others have its gradients by then and begin the
next step, which they cannot finish without it. Started by the launcher alone (`rehearsed` in launch/resolve/catalog.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from types import MappingProxyType

import torch

from slipway.options import WORKLOADS, Common, parse
from slipway.train.loop.fit import fit
from slipway.train.worker.context import Context, open_context

STEP = 3  # of the optimizer in which the fault happens; it counts from 1
RAISED = "this rank raises an exception on purpose"
HANGING = 3600.0  # seconds, which no launcher waits for
TOO_MUCH = 2**50  # bytes: more memory than any device or address space of 47 bits can give, so nothing is really taken


def stand_still(device: torch.device) -> None:
    """Hang."""
    time.sleep(HANGING)


def fail(device: torch.device) -> None:
    """Raise RuntimeError."""
    raise RuntimeError(RAISED)


def be_killed(device: torch.device) -> None:
    """End as if somebody had typed kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def take_too_much(device: torch.device) -> None:
    """Raise what torch raises where a device has no memory left: OutOfMemoryError on a GPU, RuntimeError on a CPU."""
    torch.empty(TOO_MUCH, dtype=torch.uint8, device=device)


FAULTS: Mapping[str, Callable[[torch.device], None] | None] = MappingProxyType(
    {"none": None, "hang": stand_still, "raise": fail, "kill": be_killed, "memory": take_too_much}
)


def train(context: Context, fault: str, workload: str, args: list[str]) -> None:
    """Train a workload in one order of sums, until the fault happens; model and optimizer are gone when this returns."""
    torch.use_deterministic_algorithms(True)  # on a GPU attention's backward adds in an order of chance by default
    options = parse(WORKLOADS[workload], args)
    assert isinstance(options, Common)
    task = import_module(f"slipway.train.workloads.{workload}").make_task(options, context)
    harm, steps = FAULTS[fault], count(1)

    def before_step(*_: object) -> None:
        if harm is not None and next(steps) == STEP:
            harm(context.device)

    if context.place.rank == context.place.world_size - 1:
        task.optimizer.register_step_pre_hook(before_step)
    fit(task, options, context)


def main() -> None:
    """Run as a worker."""
    # What cuBLAS must be told before it starts, for sums that are always taken in the same order:
    # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    fault, workload, *args = sys.argv[1:]
    with open_context(abandon=True) as context:
        train(context, fault, workload, args)


if __name__ == "__main__":
    main()
