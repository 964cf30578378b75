"""The training that snapshot.py saves, what a snapshot takes, and what a step takes beside each part of writing one."""

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread, get_native_id

import torch
from snapshot_peers import remove

from slipway.options import parse
from slipway.options.gpt import GptOptions
from slipway.protocol.durable import PIECE
from slipway.protocol.files import SNAPSHOTS
from slipway.train.loop.arithmetic import are_finite
from slipway.train.loop.saving import save, wait_for_writers
from slipway.train.loop.step import take_step
from slipway.train.loop.training import Training, begin_training
from slipway.train.snapshots.writer import NICE, copy_all
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import read_place
from slipway.train.workloads.gpt import make_task

MODEL = "--layers 12 --heads 8 --context 64 --batch-size 2 --precision fp32 --keep 1 --embed"
STEPS, MOST = 3, 12  # without a snapshot, to compare those beside one with; and of these, at most


@dataclass(frozen=True)
class Saved:
    """Seconds that training stood still, CPU seconds of it, seconds until all was on the disk, and bytes there.

    `lost`: seconds by which training was held up in all, with what its steps took longer meanwhile. `slower`: how many
    times as long such a step took; 0 where training stood still all the time.
    """

    stall: float
    cpu: float
    done: float
    size: int
    lost: float
    slower: float = 0.0


def make_training(folder: Path, embed: int) -> Training:
    """A training after its first step, so that the optimizer has its state."""
    place = read_place({"SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder)})
    context = Context(place, torch.device("cpu"), None, Heartbeat(folder / "heartbeat.json"))
    options = parse(GptOptions, f"{MODEL} {embed}".split())
    with contextlib.redirect_stdout(io.StringIO()):
        training = begin_training(make_task(options, context), options, context)
    training.loader.start(0)
    take_step(training, "train")
    return training


def tensors(training: Training) -> list[torch.Tensor]:
    """All that is saved."""
    return [tensor for named in training.parallel.collect()[0].values() for tensor in named.values()]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def take_steps(training: Training, until: Callable[[int], bool]) -> list[float]:
    """Take at least one step. Returns the seconds of each."""
    each: list[float] = []
    while not each or not until(len(each)):
        each.append(seconds(lambda: take_step(training, "train")))
    return each


def save_here(training: Training, path: Path, way: Callable[[Training, Path], None]) -> Saved:
    """A side during which training stands still."""
    cpu = time.process_time()
    stall = seconds(lambda: way(training, path))
    return Saved(stall, time.process_time() - cpu, stall, remove(path), stall)


def save_beside(
    training: Training, path: Path, begin: Callable[[], object], busy: Callable[[], bool], waited: Callable[[], float]
) -> Saved:
    """A side that goes on while training does, until it is not `busy`; a step may have `waited` for it as well."""
    alone = median(take_steps(training, lambda number: number == STEPS))
    start, cpu = time.perf_counter(), time.process_time()
    stall = seconds(begin)
    cpu = time.process_time() - cpu
    beside = take_steps(training, lambda number: number == MOST or not busy())
    while busy():
        time.sleep(0.01)
    done = time.perf_counter() - start
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    lost = stall + sum(beside) - alone * len(beside)
    return Saved(stall + waited(), cpu, done, size, lost, median(beside) / alone)


def save_with_slipway(training: Training) -> Saved:
    """What the loop does, up to the step in which the snapshot is verified."""
    path = training.context.place.run_dir / SNAPSHOTS
    saved = save_beside(training, path, lambda: save(training), lambda: training.snapshots.writer.wait(0), lambda: 0.0)
    wait_for_writers(training)  # raises what went wrong
    return saved


def time_parts(training: Training) -> dict[str, float]:
    """Seconds of the two parts of a stall that grow with the state."""
    sources = {("", str(number)): tensor for number, tensor in enumerate(tensors(training))}
    targets = {key: tensor.clone() for key, tensor in sources.items()}
    finite = [seconds(lambda: are_finite(list(sources.values()))) for _ in range(STEPS)]
    copies = [seconds(lambda: copy_all(sources, targets)) for _ in range(STEPS)]
    return {"to see that every number is finite, s": median(finite), "to copy them, s": median(copies)}


def time_beside(training: Training, path: Path) -> dict[str, float]:
    """How many times as long a step takes beside a thread that does one part of writing a snapshot, all the time."""
    source, target = torch.ones(2, PIECE, dtype=torch.uint8)
    parts: dict[str, Callable[[], object]] = {
        "a step beside checksums, × alone": lambda: hashlib.sha256(source.numpy()),
        "a step beside copies in memory, × alone": lambda: target.copy_(source),
        "a step beside writes and fsync, × alone": lambda: write(path, source.numpy().data),
    }
    slower = {}
    for name, part in parts.items():
        alone = take_steps(training, lambda number: number == STEPS)
        end = Event()
        thread = Thread(target=repeat, args=(part, end))
        thread.start()
        beside = take_steps(training, lambda number: number == STEPS)
        end.set()
        thread.join()
        slower[name] = median(beside) / median(alone)
    remove(path)
    return slower


def repeat(part: Callable[[], object], end: Event) -> None:
    """What a thread does that is as humble as the one that writes snapshots."""
    os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    while not end.is_set():
        part()


def write(path: Path, data: memoryview) -> None:
    """Write a file of several pieces, durably."""
    with path.open("wb") as file:
        for _ in range(8):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
