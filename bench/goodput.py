"""How much of its time a job trains where a random rank is killed every 15 s: torchrun, `slipway run`, and a workload of ours.

    .venv/bench/bin/python bench/goodput.py [--minutes 10]

The script is what people write: DDP on a GPT of the size of `slipway gpt --preset tiny`, on two processes, that saves with
torch.save every 10 s and goes on from there. torchrun and `slipway run` start the same file. Kills come at the same moments on
all sides, which run one after the other. Steps that were done again count once. The pace without kills is that of our workload,
and of the script under torchrun, with which both of its sides are compared. Our workload gets as many steps as keep it busy so
long, and its last snapshot is compared with that of an undisturbed run.
"""

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from report import Report, options_parser, read_options
from sides import Spread

BIN = Path(sys.executable).parent
SECONDS_BETWEEN = 15.0  # from kill to kill
LOOK = 0.25  # s
PATIENCE = 120.0  # s until the first step
SCRIPT = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from peers.model import Model
from peers.plan import Size

dist.init_process_group("gloo")
rank = dist.get_rank()
Path(f"pid-{rank}").write_text(str(os.getpid()))
torch.manual_seed(rank)
model = DistributedDataParallel(Model(Size("tiny", 4, 128, 128, 8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step, saved = 0, time.monotonic()
if os.path.exists("checkpoint.pt"):
    kept = torch.load("checkpoint.pt", weights_only=True)
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step = kept["step"]
while True:
    tokens = torch.randint(256, (8, 129))
    loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
    if rank == 0:
        Path("step.new").write_text(str(step))
        os.replace("step.new", "step")
        if time.monotonic() - saved > 10:
            kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(kept, "checkpoint.new")
            os.replace("checkpoint.new", "checkpoint.pt")
            saved = time.monotonic()
"""
RESTARTS = "1000"
TORCHRUN = (BIN / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SLIPWAY = (BIN / "python", "-m", "slipway", "run", "--nproc-per-node", "2")
GPT = (*SLIPWAY, "gpt", "--preset", "tiny", "--save-every", "20", "--eval-samples", "64", "--sample-tokens", "0")


@dataclass(frozen=True)
class Course:
    """What a side came to: steps at its beginning and after each minute, or part of one at the end; kills; seconds of all."""

    steps: list[int]
    kills: int
    seconds: float

    @property
    def done(self) -> int:
        """Steps in all, each counted once."""
        return self.steps[-1] - self.steps[0]


@dataclass(frozen=True)
class Side:
    """A command, and where in its folder one reads how far it is and whom one can kill."""

    command: Sequence[str | Path]
    read: Callable[[Path], tuple[int, list[int]]]

    @contextmanager
    def start(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """The job, killed at the end with all that it started."""
        (folder / "own.py").write_text(SCRIPT)
        told = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
        environ = {name: os.environ[name] for name in ("PATH", "HOME")} | told
        with (folder / "output.txt").open("wb") as output:
            job = subprocess.Popen(
                self.command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield job
        finally:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(60)
            job.kill()
            job.wait()

    def step(self, folder: Path) -> int:
        """How far it is; 0 before its first step."""
        return self.read(folder)[0]


def read_script(folder: Path) -> tuple[int, list[int]]:
    """Of the script: its step, and its ranks' process ids."""
    with suppress(OSError, ValueError):
        return int((folder / "step").read_text()), [int((folder / f"pid-{rank}").read_text()) for rank in (0, 1)]
    return 0, []


def read_workload(folder: Path) -> tuple[int, list[int]]:
    """The same of our workload, from its heartbeats."""
    beats = []
    for file in sorted(folder.glob("runs/*/node-0/heartbeat/rank-*.json")):
        with suppress(OSError, ValueError):
            beats.append(json.loads(file.read_text()))
    return max((beat["step"] for beat in beats), default=0), [beat["pid"] for beat in beats]


def is_worker(pid: int) -> bool:
    """Whether a process runs that may be a rank: what was killed left its number behind."""
    with suppress(OSError):
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


SIDES = {
    "torchrun": Side((*TORCHRUN, "--max-restarts", RESTARTS, "own.py"), read_script),
    "slipway run": Side((*SLIPWAY, "--max-restarts", RESTARTS, "--progress-seconds", "5", "own.py"), read_script),
}


@dataclass(frozen=True)
class Kills:
    """One of the ranks is killed `every` so many seconds, `most` times in all."""

    every: float
    most: float = math.inf


NONE = Kills(math.inf, 0)


def follow(side: Side, folder: Path, seconds: float, kills: Kills) -> Course:
    """Run a side so long, from its first step on, or to its own end, and kill its ranks.

    Raises RuntimeError with its last lines where it ends in any other way than well.
    """
    victims = random.Random(7).choices((0, 1), k=1000)
    with side.start(folder) as job:
        begun = time.monotonic()
        while not (reached := side.step(folder)) and job.poll() is None:
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError((folder / "output.txt").read_text()[-3000:])
            time.sleep(LOOK)
        begun = time.monotonic()
        steps, done, passed = [reached], 0, 0.0
        while job.poll() is None and (passed := time.monotonic() - begun) < seconds:
            step, pids = side.read(folder)
            reached = max(reached, step)
            if passed >= len(steps) * 60:
                steps.append(reached)
            if done < kills.most and passed >= (done + 1) * kills.every:
                victim = victims[done % len(victims)]
                if len(pids) == 2 and is_worker(
                    pids[victim]
                ):  # else it is just being started, and killed at the next look
                    os.kill(pids[victim], signal.SIGKILL)
                    done += 1
            time.sleep(LOOK)
        ended = job.poll()
    if ended:
        raise RuntimeError((folder / "output.txt").read_text()[-3000:])
    return Course([*steps, max(reached, side.step(folder))], done, passed)


def last_snapshot(folder: Path) -> dict[str, str]:
    """The checksums of the files of a run's last snapshot."""
    newest = max(folder.glob("runs/*/snapshots/step-????????"))
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in newest.iterdir()
        if "manifest" not in file.name
    }


def ledger(folder: Path) -> dict[str, float]:
    """What a job's seconds went into."""
    [file] = folder.glob("runs/*/outcome.json")
    told: dict[str, float] = json.loads(file.read_text())["ledger"]["seconds"]
    return told


def main() -> int:
    """Print the table; 1 where a target is missed for no known reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    report = Report("Goodput", "A random one of two ranks is killed every 15 s.", read_options(parser))
    seconds, kills = (
        (8.0, Kills(3, 1)) if report.options.smoke else (60 * report.options.minutes, Kills(SECONDS_BETWEEN))
    )
    with tempfile.TemporaryDirectory() as name:

        def run(side: Side, folder: str, seconds: float, kills: Kills = NONE) -> Course:
            made = Path(name, folder)
            made.mkdir()
            return follow(side, made, seconds, kills)

        pace = run(SIDES["torchrun"], "pace", min(60.0, seconds))
        probe = run(Side((*GPT, "--steps", "100000"), read_workload), "probe", min(60.0, seconds))
        steps = max(40, int(0.85 * seconds * probe.done / probe.seconds))
        ours = Side((*GPT, "--steps", str(steps)), read_workload)
        calm = run(ours, "calm", 10 * seconds)
        harmed = run(ours, "harmed", 10 * seconds, kills)
        others = {side: run(SIDES[side], side.replace(" ", "-"), harmed.seconds, kills) for side in SIDES}
        equal = last_snapshot(Path(name, "calm")) == last_snapshot(Path(name, "harmed"))
        booked = ledger(Path(name, "harmed"))
    undisturbed = {"slipway gpt": calm, "torchrun": pace, "slipway run": pace}
    rows = [
        [
            side,
            str(course.kills),
            str(course.done),
            f"{course.done / course.seconds:.1f}",
            f"{course.done / course.seconds / (undisturbed[side].done / undisturbed[side].seconds):.1%}",
        ]
        for side, course in {**others, "slipway gpt": harmed}.items()
    ]
    report.table(
        f"{harmed.seconds:.0f} s, a kill every {kills.every:g} s",
        ["", "kills", "steps done", "steps/s", "of the pace without kills"],
        rows,
    )
    trained = booked["training"] / sum(booked.values())
    report.target("slipway gpt, of all its seconds by its ledger: training", Spread.of([trained]), 0.8, "")
    gained = Spread.of([harmed.done / max(1, others["torchrun"].done)])
    report.target("slipway gpt, steps against torchrun's script", gained, 2.0)
    report.target("slipway gpt, last snapshot equal to an undisturbed one's", Spread.of([float(equal)]), 1.0, "")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
