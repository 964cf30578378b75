"""Is a rank that is a fifth slower named, and nobody else? Short real trainings of a small GPT, whose ranks share this machine.

    .venv/bin/python tests/train/straggler_trials.py [--runs 40]

Half of the runs have two ranks, half three; of each one rank sleeps in each step, or waits for its data, for a fifth of what
it works on a step by itself. As many runs are healthy, beside processes that keep every core busy. The exit code is 1 where
fewer than 95 % of the slow ranks are named rightly within 50 steps, or more than 2 % of the healthy runs name anybody.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])

from training_jobs import SERVER, Job, Run

STEPS = 50
GPT = (
    "--preset",
    "tiny",
    "--batch-size",
    12,
    "--save-every",
    0,
    "--eval-every",
    0,
    "--sample-tokens",
    0,
    "--workers",
    0,
)
SHARE = 0.2  # by which the slow rank is slower
KINDS = ("part", "data")


def train(runs: Path, ranks: int, slower: Sequence[object] = (-1, "", 0)) -> Run:
    """Train in a folder of its own below that of the `runs`."""
    folder = Path(tempfile.mkdtemp(dir=runs))
    job = Job([folder])
    words = ("--steps", STEPS + 2, "--log-every", 1, "--eval-samples", 12, *GPT)
    job.start("gpt", words, ranks, faults={"slower": list(slower)})
    [run] = job.end()
    if run.exit_code:
        raise RuntimeError(run.output)
    return run


def named(run: Run) -> set[int]:
    """Whom the lines up to the last of these steps name."""
    return {int(row["slow_rank"]) for row in run.metrics if "slow_rank" in row and row["step"] <= STEPS}


def own_time(run: Run, ranks: int) -> float:
    """Seconds that a rank works on a step by itself, the median of all."""
    beats: list[dict[str, Any]] = [
        json.loads((run.folder / f"node-0/heartbeat/rank-{rank}.json").read_text()) for rank in range(ranks)
    ]
    return statistics.median(beat["own"] for beat in beats if beat["own"])


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core has something else to do, too."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main(folder: Path) -> int:
    """Print what came out of runs in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="of each kind (40)")
    runs = parser.parse_args().runs
    SERVER.set_forkserver_preload(["faulty_worker"])
    forkserver.ensure_running()
    right = wrong = 0
    for number, (ranks, kind) in zip(range(runs), itertools.cycle(itertools.product((2, 3), KINDS)), strict=False):
        slow = random.randrange(ranks)
        own = own_time(train(folder, ranks), ranks)  # right before: this machine is not always as fast
        found = named(train(folder, ranks, (slow, kind, SHARE * own)))
        right += found == {slow}
        print(
            f"run {number}: {ranks} ranks, {1e3 * own:.0f} ms a step, {slow} slow ({kind}): named {sorted(found) or 'nobody'}",
            flush=True,
        )
    with busy_cores():
        for number in range(runs):
            ranks = 2 + number % 2
            found = named(train(folder, ranks))
            wrong += bool(found)
            print(f"run {number}: {ranks} ranks, healthy, busy cores: named {sorted(found) or 'nobody'}", flush=True)
    print(f"named rightly: {right} of {runs}; healthy runs that named somebody: {wrong} of {runs}")
    return int(right < 0.95 * runs or wrong > 0.02 * runs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="straggler-trials-") as name:
        code = main(Path(name))
    sys.exit(code)
