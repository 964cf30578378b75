"""Trainings without a fault whose micro-batches are replayed: real jobs of two to four processes, of two kinds of processors.

As a program, which `run_job` starts for each rank: `clean_steps.py JOB STEPS EVERY RESULT`.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import own_replays
import torch
import torch.distributed as dist
from ports import take_port

from slipway.options.common import AUTO
from slipway.train.observe.comparability import LIMITS
from slipway.train.observe.replay import Replays
from slipway.train.user.run import ResumableRun
from slipway.train.worker.context import open_context

ALARM = re.compile(
    r"computed wrongly|computed different results|replays are turned off|no longer compared there|differs from the others|no micro-batch"
)


@dataclass(frozen=True)
class CleanJob:
    """A training. `kinds`: of the ranks' processors; A has all instructions of this machine, B fewer.

    `words`: a workload of Slipway's and its options, else `form` is that of an own loop (own_replays), which may be `compiled`.
    """

    kinds: str
    words: tuple[object, ...] = ()
    form: str = ""
    compiled: bool = False


FIT = ("--save-every", 0, "--eval-every", 0, "--log-every", 1000)
GPT = ("gpt", "--layers", 2, "--heads", 2, "--embed", 32, "--context", 32, "--dropout", 0.1, "--eval-samples", 8, *FIT)
VISION = ("vision", "--train-pictures", 512, "--eval-pictures", 32, "--lr", 0.01, "--precision", "fp32", *FIT)
JOBS = {
    "gpt with accumulation": CleanJob("AA", (*GPT, "--batch-size", 8, "--accumulate", 2, "--precision", "fp32")),
    "vision": CleanJob("AABB", (*VISION, "--batch-size", 16)),
    "gpt in bf16": CleanJob("AAB", (*GPT, "--batch-size", 12, "--precision", "bf16")),
    "own loop": CleanJob("AAA", form="plain"),
    "gpt, compiled": CleanJob("AA", (*GPT, "--batch-size", 8, "--precision", "fp32", "--compile")),
    "own loop with accumulation": CleanJob("AABB", form="accumulating"),
    "vision, one rank of each kind": CleanJob("AB", (*VISION, "--batch-size", 8)),
    "own loop in bf16": CleanJob("AAB", form="half"),
    "own loop, compiled": CleanJob("AB", form="plain", compiled=True),
    "own loop that calls backward itself": CleanJob("AABB", form="backward"),
}


def run_job(name: str, steps: int, every: str, device: str = "cpu") -> Counter[str]:
    """Run a job to its end, its ranks on the CPU or sharing a GPU, and print what was found: how many steps and replays there were, and 1 alarm if there was any."""
    with tempfile.TemporaryDirectory() as made:
        folder, port = Path(made), take_port()
        result = folder / "result.json"
        logs = [folder / f"rank-{rank}.log" for rank in range(len(JOBS[name].kinds))]
        processes = []
        for rank, log in enumerate(logs):
            command = [sys.executable, __file__, name, str(steps), every, str(result)]
            with log.open("wb") as output:
                environ = rank_environment(folder, rank, JOBS[name].kinds, port) | {"SLIPWAY_DEVICE": device}
                processes.append(subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait() for process in processes]
        finally:
            for process in processes:
                process.kill()
        said = "".join(log.read_text(errors="replace") for log in logs)
        found = Counter[str](json.loads(result.read_text()) if result.exists() else {})
    alarm = any(codes) or ALARM.search(said) or found["agreed"] < found["replays"] or found["steps"] < steps
    found["alarms"] = int(bool(alarm))
    print(f"{name} ({JOBS[name].kinds}): {found['steps']} steps, {found['replays']} replays, {found['alarms']} alarms")
    if alarm:
        print(f"ended with {codes}:\n{said}")
    sys.stdout.flush()
    return found


def rank_environment(folder: Path, rank: int, kinds: str, port: int) -> dict[str, str]:
    """The environment of a rank."""
    from training_jobs import worker_environment  # whose imports take seconds, which the ranks need not wait for

    more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(kinds), "GROUP_RANK": 0}
    more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLIPWAY_SHARED_RUN_DIR": 1}
    if kinds[rank] == "B" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        more |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    elif kinds[rank] == "B":
        # torch without AVX2 has no fused multiply-add: its optimizers would let the weights differ, which ends a job.
        more |= {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    here = Path(__file__).parent
    more |= {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))}
    kept = {name: value for name, value in os.environ.items() if name not in LIMITS}
    return kept | worker_environment(folder, "none") | {name: str(value) for name, value in more.items()}


def main(name: str, steps: str, every: str, result: str) -> None:
    """Be a rank of a job. Rank 0 writes how many steps and replays there were, and after how many all ranks agreed."""
    torch.set_num_threads(1)
    agreed: list[bool] = []
    replay_once = Replays._replay

    def counted(replays: Replays, step: int) -> None:
        replay_once(replays, step)
        agreed.append(replays.clean == step)

    Replays._replay = counted  # type: ignore[method-assign]
    done = train_own(JOBS[name], int(steps), every) if JOBS[name].form else train_fit(JOBS[name], steps, every)
    if os.environ["RANK"] == "0":
        Path(result).write_text(json.dumps({"steps": done, "replays": len(agreed), "agreed": sum(agreed)}))


def train_fit(job: CleanJob, steps: str, every: str) -> int:
    """Train a workload of Slipway's; the steps that were done."""
    workload, *words = map(str, job.words)
    more = ["--sample-tokens", "0"] if workload == "gpt" else []
    with open_context(abandon=True) as context:
        train = import_module(f"slipway.train.workloads.{workload}").train
        train(context, [*words, *more, "--steps", steps, "--replay-every", every])
        return context.outcome.step


def train_own(job: CleanJob, steps: int, every: str) -> int:
    """Train an own loop; the steps that were done."""
    dist.init_process_group("gloo")
    begin: tuple[Callable[[int], Any], ...] = (torch.manual_seed, np.random.seed, random.seed)
    for seed in begin:
        seed(1 + dist.get_rank())
    runs: list[ResumableRun] = []
    interval = every if every == AUTO else int(every)
    epochs = -(-steps * own_replays.FORMS[job.form][2] // own_replays.BATCHES)
    own_replays.train(job.form, interval, runs.append, epochs, save_every=1000, compiled=job.compiled)
    return runs[0].step


if __name__ == "__main__":
    main(*sys.argv[1:])
