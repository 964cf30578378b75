"""A worker with faults, which FAULTS in its environment holds as JSON.

kill            [rank, step]: SIGKILL before that step
forget_random   true: the random generators' states are not restored
infinite        [rank, [steps], times]: these steps' loss is infinite, in that many passes over them
flip            [rank, step, number, times]: before that step one bit of weights or optimizer changes, by a number of any size,
                in that many passes over it
slow            {"part" | "evaluate" | "save" | "load" | "data": seconds}: each of these takes longer
slower          [rank, "part" | "data", seconds]: on that rank each of these takes so much longer
lasts           seconds for which a rank has to be slow before it warns
untimed         true: nobody looks how long a rank works by itself
full_disk       step: from its snapshot on the disk is full
patience        seconds that one exchange among the ranks may take
profiler        rank: torch's profiler does not start there
stuck           true: letting go of the other ranks takes for ever
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch._dynamo  # which every optimizer loads
import torch.distributed as dist

from slipway.train.loop import fit as loop
from slipway.train.loop import saving, step, stragglers, training
from slipway.train.loop.loader import Loader
from slipway.train.loop.own_time import OwnTime
from slipway.train.loop.training import Training
from slipway.train.parallel.replicas import replicated
from slipway.train.snapshots import resume, snapshot
from slipway.train.snapshots.bits import raw_bytes
from slipway.train.text import corpus
from slipway.train.worker import group
from slipway.train.worker.context import Context, open_context
from slipway.train.workloads import gpt, linear  # noqa: F401  # the server that forks us has them loaded

corpus.read_stdlib = cache(corpus.read_stdlib)
corpus.read_stdlib()  # once, in the server that forks us


def wrap(place: object, name: str, before: Callable[..., None]) -> None:
    """Call `before` with the same arguments each time."""
    real = getattr(place, name)

    def wrapped(*args: Any, **more: Any) -> Any:
        before(*args, **more)
        return real(*args, **more)

    setattr(place, name, wrapped)


def break_steps(faults: Mapping[str, Any], own: int) -> None:
    rank, steps, times = faults.get("infinite", [-1, [], 0])
    pause = faults.get("slow", {}).get("part", 0) + slower(faults, own, "part")
    seen: list[int] = []

    def begin(training: Training, phase: str) -> None:
        seen.append(training.step)
        if faults.get("flip", [])[:2] == [own, training.step] and seen.count(training.step) <= faults["flip"][3]:
            print(f"flipped {flip(replicated(training.task.model, training.task.optimizer), faults['flip'][2])}")
        if "kill" in faults:
            training.memory.wait_for_room()  # which a busy machine takes some of these short steps for
        if faults.get("kill") == [own, training.step]:
            os.kill(os.getpid(), signal.SIGKILL)

    def infect(loss: torch.Tensor) -> torch.Tensor:
        time.sleep(pause)
        wrong = rank == own and seen and seen[-1] in steps and seen.count(seen[-1]) <= times
        return poison(loss + torch.inf if wrong else loss)  # its gradient stays finite

    wrap(loop, "take_step", begin)
    poison = step.poison
    step.poison = infect


def slower(faults: Mapping[str, Any], own: int, what: str) -> float:
    """Seconds by which something takes longer on this rank than on the others."""
    rank, slow, seconds = faults.get("slower", [-1, "", 0])
    return float(seconds) if (rank, slow) == (own, what) else 0.0


def fail_to_profile(**_: object) -> None:
    raise RuntimeError("no profiler today")


def flip(tensors: Mapping[str, torch.Tensor], number: int) -> str:
    """Change one bit, which the number says; the tensor's name."""
    names = [name for name, tensor in tensors.items() if tensor.numel() > 1]
    name = names[number % len(names)]
    raw = raw_bytes(tensors[name])
    raw[number % raw.numel()] ^= 1 << number % 8
    return name


def break_the_disk(faults: Mapping[str, Any]) -> None:
    def write(path: Any, *_: Any) -> None:
        time.sleep(faults.get("slow", {}).get("save", 0))
        if "full_disk" in faults and f"{faults['full_disk']:08d}" in os.path.realpath(path):  # a folder that is held
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    wrap(snapshot, "write_file", write)
    wrap(resume, "load_newest", lambda *_: time.sleep(faults.get("slow", {}).get("load", 0)))


def break_context(context: Context, slow: Mapping[str, float]) -> None:
    def begin_stop_exchange(late: bool = False) -> None:
        if context._heartbeat._phase == "evaluate":
            time.sleep(slow["evaluate"])

    if "evaluate" in slow:
        wrap(context, "begin_stop_exchange", begin_stop_exchange)


def work(environment: Mapping[str, str], log: str, workload: str, args: Sequence[str]) -> None:
    """Be the worker that `environment` says, in a process of its own; all that it prints goes to the file `log`."""
    with open(log, "w") as file:  # noqa: PTH123
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    faults = json.loads(environment["FAULTS"])
    if faults.get("forget_random"):
        saving.set_random_states = lambda *_: None
    break_steps(faults, int(environment["RANK"]))
    break_the_disk(faults)
    if faults.get("untimed"):
        training.OwnTime = lambda _, device: OwnTime((), device)  # type: ignore[misc, assignment]
        wrap(stragglers.Stragglers, "look", lambda own: setattr(own, "_group", None))
    stragglers.LASTS = faults.get("lasts", stragglers.LASTS)
    if faults.get("profiler") == int(environment["RANK"]):
        torch.profiler.profile = fail_to_profile  # type: ignore[misc,assignment]
    if faults.get("stuck"):
        dist.destroy_process_group = lambda: time.sleep(600)  # type: ignore[assignment]
    if "patience" in faults:
        group.COLLECTIVE_TIMEOUT = timedelta(seconds=faults["patience"])
    data = faults.get("slow", {}).get("data", 0) + slower(faults, int(environment["RANK"]), "data")
    wrap(Loader, "_make_part", lambda *_: time.sleep(data))
    with open_context(abandon=True) as context:
        break_context(context, faults.get("slow", {}))
        import_module(f"slipway.train.workloads.{workload}").train(context, list(args))
