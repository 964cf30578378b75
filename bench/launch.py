"""What a launch costs: the launcher's own part, and a job of two processes that do nothing, against bare torchrun.

    python bench/launch.py [--rounds 8]

The launcher's own part is `slipway plan`, which does all that comes before torchrun and imports no torch; beside it stands an
empty Python. The job is a script without a line. Slipway starts it with everything that it has on: logs of each rank, signals,
verdict, run directory. torchrun is taken with its static rendezvous, as Slipway takes it, and as people type it
(--standalone); accelerate where it is installed. Ends with 1 where a target is missed.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sides import Cost, Spread, machine, ratio, run, take_turns

BIN = Path(sys.executable).parent
OWN = 0.060  # s, at most
AGAINST = {"torchrun": 1.05, "accelerate": 0.75}  # times as long, at most
PEERS = {
    "torchrun": ["--nproc-per-node=2", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29511"],
    "torchrun --standalone": ["--standalone", "--nproc-per-node=2"],
    "accelerate": ["launch", "--cpu", "--multi_cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"],
}


def main() -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    print(machine(rounds))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nothing.py").touch()
        missed = [
            name for name, measure in (("own", measure_own), ("jobs", measure_jobs)) if not measure(folder, rounds)
        ]
    return int(bool(missed))


def measure_own(folder: Path, rounds: int) -> bool:
    """Print what comes before torchrun; whether the target is met."""
    sides = {
        "an empty Python": command(folder, "python", "nothing.py"),
        "slipway, up to torchrun": command(folder, "slipway", "plan", "nothing.py"),
    }
    costs = take_turns(sides, rounds)
    for name, side in costs.items():
        row(name, side)
    return told(Spread.of([cost.wall for cost in costs["slipway, up to torchrun"]]), OWN, "s")


def measure_jobs(folder: Path, rounds: int) -> bool:
    """Print what jobs without work cost; whether the targets are met."""
    sides = {"slipway": command(folder, "slipway", "run", "--nproc-per-node=2", "nothing.py")}
    for name, words in PEERS.items():
        program = name.partition(" ")[0]
        if (BIN / program).exists():
            sides[name] = command(folder, program, *words, "nothing.py")
        else:
            print(f"{name:<28} skipped: it is not installed")
    costs = take_turns(sides, rounds)
    met = []
    for name, side in costs.items():
        row(name, side)
        if name in AGAINST:
            met.append(told(ratio(costs["slipway"], side), AGAINST[name], f"times {name}"))
    return all(met)


def command(folder: Path, program: str, *words: str) -> Callable[[], Cost]:
    """A side: a program of this environment, in a folder without runs, on CPUs."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def once() -> Cost:
        shutil.rmtree(folder / "runs", ignore_errors=True)
        return run([str(BIN / program), *words], folder, environ)

    return once


def row(name: str, costs: list[Cost]) -> None:
    """Print what a side took."""
    wall, cpu = Spread.of([cost.wall for cost in costs]), Spread.of([cost.cpu for cost in costs])
    print(f"{name:<28} {wall} s, CPU {cpu.median:.3f} s", flush=True)


def told(value: Spread, target: float, unit: str) -> bool:
    """Print a value beside its target; whether that is met."""
    met = value.median <= target
    print(f"  {value} {unit}, at most {target}: {'met' if met else 'missed'}", flush=True)
    return met


if __name__ == "__main__":
    sys.exit(main())
