"""How long training stands still for a snapshot, against torch.save and fsync of the same state, on this machine.

    python bench/snapshot.py [--rounds 8] [--folder DIR]

A GPT with AdamW, 0.74 GB of state, on the CPU. Each round takes both sides in turn, on the same disk: torch.save of model
and optimizer with fsync, and what the loop does (checksums, verification and the rename come in the background). Then
it takes steps while the snapshot is written, and as many when nothing is. Ends with 1 where a target is missed.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "entrypoint"))

import torch

from slipway.train.context import Context
from slipway.train.heartbeat import Heartbeat
from slipway.train.options import GptOptions, parse
from slipway.train.place import read_place
from slipway.train.saving import save, wait_for_writers
from slipway.train.step import take_step
from slipway.train.training import Training, prepare
from slipway.train.workloads.gpt import make_task

MODEL = "--layers 12 --embed 656 --heads 8 --context 64 --batch-size 2 --precision fp32 --keep 1"
STALL, SLOWDOWN = 0.45, 1.10  # of torch.save and fsync; of a step when nothing is written


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def make_training(folder: Path) -> Training:
    """A training after its first step, so that the optimizer has its state."""
    place = read_place({"SLIPWAY_RUN_DIR": str(folder), "SLIPWAY_NODE_DIR": str(folder)})
    context = Context(place, torch.device("cpu"), None, Heartbeat(folder / "heartbeat.json"))
    options = parse(GptOptions, MODEL.split())
    training = prepare(make_task(options, context), options, context)
    training.loader.start(0)
    take_step(training, "train")
    return training


def save_plainly(training: Training, path: Path) -> None:
    """What most training scripts do, made durable."""
    with path.open("wb") as file:
        model, optimizer = training.task.model.state_dict(), training.task.optimizer.state_dict()
        torch.save({"model": model, "optimizer": optimizer}, file)
        file.flush()
        os.fsync(file.fileno())


def measure(training: Training, folder: Path) -> dict[str, float]:
    """One round."""
    plain = seconds(lambda: save_plainly(training, folder / "plain.pt"))
    cpu = time.process_time()
    stall = seconds(lambda: save(training))
    stall_cpu = time.process_time() - cpu
    start = time.perf_counter()
    beside = []
    while training.writer.wait(0):
        beside.append(seconds(lambda: take_step(training, "train")))
    written = time.perf_counter() - start
    wait_for_writers(training)
    alone = [seconds(lambda: take_step(training, "train")) for _ in beside]
    return {
        "plain": plain,
        "stall": stall,
        "stall_cpu": stall_cpu,
        "written": written,
        "ratio": stall / plain,
        "slowdown": statistics.median(beside) / statistics.median(alone),
    }


def main() -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default the system's own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        training = make_training(folder)
        first = measure(training, folder)
        rounds = [measure(training, folder) for _ in range(options.rounds)]
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds, median (min to max)")
    print(f"first snapshot, into new memory: {first['stall']:.3f} s, {first['ratio']:.2f} of torch.save and fsync")
    texts = {
        "plain": "torch.save and fsync, s",
        "stall": "training stands still, s",
        "stall_cpu": "  CPU seconds of it",
        "written": "written and verified after, s",
        "ratio": f"stall / torch.save, at most {STALL}",
        "slowdown": f"step while writing / alone, at most {SLOWDOWN}",
    }
    for key, text in texts.items():
        values = [one[key] for one in rounds]
        print(f"{text:<45} {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    middle = {key: statistics.median(one[key] for one in rounds) for key in texts}
    return int(middle["ratio"] > STALL or middle["slowdown"] > SLOWDOWN)


if __name__ == "__main__":
    sys.exit(main())
