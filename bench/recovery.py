"""From SIGKILL of a rank to the next step, and where the time goes: one job, whose ranks are killed in turn.

    .venv/bench/bin/python bench/recovery.py [--rounds 40]

A kill hits a random rank that has made steps for a second since the last snapshot on the disk, so that there is no pause
between the attempts. The script's row is from the kill to its first line.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import Report, options_parser, read_options
from sides import Spread

SCRIPT = """
import os, sys, time
print("begun", os.getpid(), flush=True)
import torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.barrier()
    time.sleep(0.05)
"""
TINY = (
    "gpt",
    "--preset",
    "tiny",
    "--steps",
    "1000000",
    "--save-every",
    "20",
    "--eval-every",
    "0",
    "--log-every",
    "1000",
)
PARTS = (
    "noticed, and its end",
    "verdict, next attempt",
    "until workers begin",
    "process group",
    "until the first step",
)
PATIENCE = 120.0  # s


class Job:
    """A job under way; `lines` are what it said, with the time of each."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        environ = {name: os.environ[name] for name in ("PATH", "HOME")} | {"CUDA_VISIBLE_DEVICES": "", **variables}
        self.folder, self.lines = folder, list[tuple[float, str]]()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slipway", *words],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.time(), line))

    def said(self, words: str, since: float) -> float:
        """When it said something after a moment."""
        return wait_for(lambda: next((at for at, line in self.lines if at >= since and words in line), None), self)

    @property
    def node(self) -> Path:
        """The node's folder."""
        return wait_for(lambda: next(iter(self.folder.glob("runs/*/node-0")), None), self)

    def beat(self, rank: int) -> dict[str, Any]:
        """Where a rank stands."""
        try:
            told: dict[str, Any] = json.loads((self.node / f"heartbeat/rank-{rank}.json").read_text())
        except (OSError, ValueError):
            return {}
        return told


def wait_for(ask: Any, job: Job) -> Any:
    """What is answered first that is not None or False."""
    until = time.monotonic() + PATIENCE
    while (answer := ask()) in (None, False):
        if time.monotonic() > until or job.process.poll() is not None:
            raise RuntimeError("".join(line for _, line in job.lines[-30:]))
        time.sleep(0.002)
    return answer


@contextmanager
def job(*words: str, **variables: str) -> Iterator[Job]:
    """A job in a folder of its own, killed at the end."""
    folder = Path(tempfile.mkdtemp())
    (folder / "own.py").write_text(SCRIPT)
    under_way = Job(folder, *words, **variables)
    try:
        yield under_way
    finally:
        under_way.process.kill()
        under_way.process.wait()
        time.sleep(0.5)
        shutil.rmtree(folder, ignore_errors=True)


def recover(under_way: Job) -> list[float]:
    """Kill a rank; the seconds of each part."""
    before = under_way.beat(0)["step"]
    wait_for(lambda: under_way.beat(0).get("step", 0) > before + 25, under_way)
    time.sleep(1 + random.random())
    rank = random.randrange(2)
    old = {under_way.beat(each)["pid"] for each in (0, 1)}
    killed = time.time()
    os.kill(under_way.beat(rank)["pid"], signal.SIGKILL)

    def reached(*phases: str) -> bool:
        beats = [under_way.beat(each) for each in (0, 1)]
        return all(beat.get("pid", 0) not in {*old, 0} and beat["phase"] not in phases for beat in beats)

    moments = [killed, under_way.said("the workload failed", killed), under_way.said(", attempt ", killed)]
    for phases in (("",), ("setup",), ("setup", "prepare", "load", "first-step", "data")):
        wait_for(lambda phases=phases: reached(*phases), under_way)
        moments.append(time.time())
    return [after - then for then, after in itertools.pairwise(moments)]


def restart_script(under_way: Job) -> float:
    """Kill a rank of a script; seconds until both ranks' first lines."""
    pids = [int(line.split()[-1]) for _, line in under_way.lines if "begun" in line][-2:]
    time.sleep(6 + random.random())
    killed = time.time()
    os.kill(random.choice(pids), signal.SIGKILL)
    find = lambda: [at for at, line in under_way.lines if at > killed and "begun" in line]  # noqa: E731
    wait_for(lambda: len(find()) == 2, under_way)
    return find()[0] - killed


def main() -> int:
    """Print the tables; 1 where a target is missed for no known reason."""
    report = Report("Recovery", "SIGKILL of one of two ranks on this machine.", read_options(options_parser(__doc__)))
    rounds = report.options.rounds
    for warm in ("1", "0"):
        with job(*TINY, NPROC_PER_NODE="2", SLIPWAY_WARM=warm) as under_way:
            wait_for(lambda: under_way.beat(0).get("step", 0) > 0, under_way)
            each = [recover(under_way) for _ in range(rounds if warm == "1" else max(1, rounds // 8))]
        whole = Spread.of([sum(parts) for parts in each])
        columns = [[parts[at] for parts in each] for at in range(len(PARTS))]
        rows = [
            [name, f"{Spread.of(values).median:.2f}", f"{max(values):.2f}"]
            for name, values in zip(PARTS, columns, strict=True)
        ]
        worst = max(sum(parts) for parts in each)
        report.table(
            f"gpt --preset tiny, SLIPWAY_WARM={warm}, seconds",
            ["", "median", "worst"],
            [*rows, ["kill to step", f"{whole.median:.2f}", f"{worst:.2f}"]],
        )
        if warm == "1":
            report.target("SIGKILL of a rank to a new step", whole, 2.0, "s", at_most=True)
    with job("run", "own.py", NPROC_PER_NODE="2", SLIPWAY_MAX_RESTARTS="1", SLIPWAY_PROGRESS_SECONDS="5") as under_way:
        under_way.said("begun", 0)
        time.sleep(5)
        first = Spread.of([restart_script(under_way) for _ in range(max(1, rounds // 2))])
    report.target("own script, kill to its first line", first, 1.0, "s", at_most=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
