"""A worker with faults, which FAULTS in its environment holds as JSON.

kill            [rank, step]: SIGKILL before that step
settled         true: not before all that the ranks began to keep, in memory and on the disk, is there
hold            [what, number, rank]: from the one with that number on each "step" | "part" | "evaluate" | "save" | "data" waits
                until the stop flag is raised; without a rank, on all of them
exchanges_while_loading     number: the newest snapshot is not there before the ranks have exchanged numbers so many times
forget_random   true: the random generators' states are not restored
infinite        [rank, [steps], times]: these steps' loss is infinite, in that many passes over them
flip            [rank, step, number, times]: before that step one bit of weights or optimizer changes, by a number of any size,
                in that many passes over it
wrong           [rank, step, times]: from the replay after that step on, that many of its computations have a wrong gradient
damaged         [rank, times]: so many pieces of a snapshot that another rank sends arrive there with one bit changed
known           rank: known answers are wrong there
kinds           names: of the kinds of processors that the ranks have
slower          [rank, "part" | "data", seconds]: on that rank each of these takes so much longer
simulated       seconds: each part of a step takes so long, and what is `slower` longer, by a simulated clock
untimed         true: nobody looks how long a rank works by itself
full_disk       step: from its snapshot on the disk is full
profiler        rank: torch's profiler does not start there
stuck           true: letting go of the other ranks takes for ever
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which every optimizer loads
import torch.distributed as dist
from simulated_time import simulate_time
from waiting import wait_until

from slipway.train.loop import fit as loop
from slipway.train.loop import saving, step, training
from slipway.train.loop.loader import Loader
from slipway.train.loop.training import Training
from slipway.train.observe import comparability, replay, stragglers
from slipway.train.observe.own_time import OwnTime
from slipway.train.observe.replicas import replicated
from slipway.train.snapshots import resume, snapshot
from slipway.train.snapshots.tensors import raw_bytes
from slipway.train.text import corpus
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


def break_steps(faults: Mapping[str, Any], own: int, hold: Callable[[str], None]) -> None:
    rank, steps, times = faults.get("infinite", [-1, [], 0])
    pause = 0.0 if "simulated" in faults else slower(faults, own, "part")
    seen: list[int] = []

    def begin(training: Training, phase: str) -> None:
        seen.append(training.step)
        hold("step")
        if faults.get("flip", [])[:2] == [own, training.step] and seen.count(training.step) <= faults["flip"][3]:
            print(f"flipped {flip(replicated(training.task.model, training.task.optimizer), faults['flip'][2])}")
        killed, last = faults.get("kill", [-1, -1])
        if killed >= 0:
            training.snapshots.memory.wait_for_room()  # which a busy machine takes some of these short steps for
        if training.step == last and faults.get("settled"):
            settle(training)
        if (own, training.step) == (killed, last):
            os.kill(os.getpid(), signal.SIGKILL)

    def infect(loss: torch.Tensor) -> torch.Tensor:
        hold("part")
        time.sleep(pause)
        wrong = rank == own and seen and seen[-1] in steps and seen.count(seen[-1]) <= times
        return poison(loss + torch.inf if wrong else loss)  # its gradient stays finite

    spoilt = count()
    compute_alone = training.compute_alone

    def compute_wrongly(*args: Any) -> Any:
        loss, (first, *others) = compute_alone(*args)
        rank, after, times = faults.get("wrong", [-1, 0, 0])
        if rank == own and seen and seen[-1] + 1 >= after and next(spoilt) < times:
            print(f"wrong after step {seen[-1] + 1}")
            first = first * 1.001
        return loss, (first, *others)

    training.compute_alone = compute_wrongly
    if "kinds" in faults:
        comparability.describe_processor = lambda *_: faults["kinds"][own]
    if faults.get("known") == own:
        replay.find_wrong = lambda *_: "sum in fp32: 1 of 32 numbers"
    wrap(loop, "take_step", begin)
    poison = step.poison
    step.poison = infect


def settle(training: Training) -> None:
    """Return once what this rank keeps is there, and so it is on all other ranks."""
    training.snapshots.memory.wait()
    training.snapshots.writer.wait()
    training.context.wait_for_all()


def make_hold(faults: Mapping[str, Any], own: int, flag: Path) -> Callable[[str], None]:
    """What is called before each of the parts, evaluations and others that may be held."""
    what, first, rank = (*faults.get("hold", ("", 0)), own)[:3]
    numbers = count(1)

    def hold(place: str) -> None:
        if (place, own) == (what, rank) and next(numbers) >= first:
            wait_until(flag.exists, "the stop flag")

    return hold


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


def break_the_disk(faults: Mapping[str, Any], hold: Callable[[str], None]) -> None:
    def write(path: Any, *_: Any) -> None:
        hold("save")
        if "full_disk" in faults and f"{faults['full_disk']:08d}" in os.path.realpath(path):  # a folder that is held
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    wrap(snapshot, "write_file", write)


def slow_down_loading(exchanges: int) -> None:
    made: list[object] = []
    wrap(Context, "total", lambda *_: made.append(None))
    wrap(resume, "load_newest", lambda *_, **__: wait_until(lambda: len(made) >= exchanges, f"{exchanges} exchanges"))


def damage_what_arrives(times: int) -> None:
    share, made = Context.share_together, count()

    def share_and_damage(context: Context, tensors: Sequence[torch.Tensor], source: int = 0) -> None:
        share(context, tensors, source)
        if next(made) < times:
            raw_bytes(max(tensors, key=torch.Tensor.numel))[0] ^= 1

    Context.share_together = share_and_damage  # type: ignore[method-assign]


def break_context(context: Context, hold: Callable[[str], None]) -> None:
    def begin_stop_exchange(late: bool = False) -> None:
        if context._heartbeat._phase == "evaluate":
            hold("evaluate")

    wrap(context, "begin_stop_exchange", begin_stop_exchange)


def become(environment: Mapping[str, str], log: str) -> None:
    """Have this environment, and print into the file `log`."""
    with open(log, "w") as file:  # noqa: PTH123
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)


def run_program(environment: Mapping[str, str], log: str, module: str, args: Sequence[str]) -> None:
    """Be a worker that runs `main` of a module, in a process of its own."""
    become(environment, log)
    import_module(module).main(*args)


def work(environment: Mapping[str, str], log: str, workload: str, args: Sequence[str]) -> None:
    """Be the worker that `environment` says, in a process of its own; all that it prints goes to the file `log`."""
    become(environment, log)
    faults = json.loads(environment["FAULTS"])
    if faults.get("forget_random"):
        saving.load_random_states = lambda *_: None
    hold = make_hold(faults, int(environment["RANK"]), Path(environment["SLIPWAY_NODE_DIR"], "stop"))
    break_steps(faults, int(environment["RANK"]), hold)
    break_the_disk(faults, hold)
    if faults.get("untimed"):
        training.OwnTime = lambda _, device: OwnTime((), device)  # type: ignore[misc, assignment]
        wrap(stragglers.Stragglers, "check", lambda own: setattr(own, "_group", None))
    if "simulated" in faults:
        simulate_time(int(environment["RANK"]), faults["simulated"], faults.get("slower", [-1, "", 0]))
    if faults.get("profiler") == int(environment["RANK"]):
        torch.profiler.profile = fail_to_profile  # type: ignore[misc,assignment]
    if faults.get("stuck"):
        dist.destroy_process_group = threading.Event().wait  # type: ignore[assignment]
    damaged, times = faults.get("damaged", [-1, 0])
    damage_what_arrives(times if damaged == int(environment["RANK"]) else 0)
    slow_down_loading(faults.get("exchanges_while_loading", 0))
    data = 0.0 if "simulated" in faults else slower(faults, int(environment["RANK"]), "data")
    trains = threading.main_thread()  # which makes an example before the first step

    def make_part(*_: object) -> None:
        if threading.current_thread() is not trains:
            hold("data")
        time.sleep(data)

    wrap(Loader, "_make_part", make_part)
    with open_context(abandon=True) as context:
        break_context(context, hold)
        import_module(f"slipway.train.workloads.{workload}").train(context, list(args))
