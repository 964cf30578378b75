"""How soon a compiled GPT-2 takes its first step on a GPU when the compiler's cache was kept, against an empty one.

    .venv/bench/bin/python bench/gpu/warm_start.py [--rounds 8] [--device cuda] [--smoke] [--json FILE]

`slipway gpt --preset gpt2` as a command, from its start to the end of its first step, with all that lies between: imports,
the launcher, torchrun, data, compiling. Then it is told to stop. The cold side has an empty folder for the caches of Inductor
and Triton each time, the warm one a folder that it has trained with before, as a volume keeps it in a container (/data). Takes
about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where report.py and sides.py are

from ground import bare_environment, describe, read_ground
from report import Report
from sides import Cost, Side, Spread, ratio, take_turns

COLD, WARM, EAGER = "an empty cache", "a cache that was kept", "not compiled"
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
LIMIT = 0.4
ENDS = (0, 75)  # finished, or stopped with a snapshot
STEPS = ["--steps=100000", "--log-every=1", "--save-every=0", "--eval-every=0"]
TRAINS = ["gpt", "--preset=gpt2", "--batch-size=16", "--accumulate=2", *STEPS]
TINY = ["gpt", "--preset=tiny", "--layers=1", "--embed=32", "--heads=2", "--context=16", *STEPS]


def main() -> int:
    """Print the table; 1 where the target is missed without a reason."""
    if (options := read_ground(__doc__)) is None:
        return 0
    report = Report(
        "Start with a kept compile cache",
        f"{describe(options.device)}; seconds from the command to the end of the first step, in one process.",
        options,
    )
    with tempfile.TemporaryDirectory() as name:
        compiled = ["--compile"] if options.device.type == "cuda" else []
        cold, warm = (start(options, Path(name) / folder, compiled) for folder in ("cold", "warm"))
        eager = start(options, Path(name) / "eager", ["--no-compile"])
        if options.smoke:
            costs = {COLD: [cold()], WARM: [warm()]}
            costs[EAGER] = costs[COLD]  # on a CPU it is the same
        else:
            costs = take_turns({COLD: cold, WARM: warm}, options.rounds)
            costs[EAGER] = [eager() for _ in range(min(3, options.rounds))]
    rows = [
        [side, f"{Spread.of([cost.wall for cost in each])}", f"{Spread.of([cost.cpu for cost in each]).median:.1f}"]
        for side, each in costs.items()
    ]
    report.table("To the end of the first step", ["with", "seconds", "CPU s of the whole command"], rows)
    floor, whole = (Spread.of([cost.wall for cost in costs[side]]).median for side in (EAGER, COLD))
    why = f"a start that compiles nothing takes {floor / whole:.2f} of a cold one: imports, launcher, torchrun, data"
    report.target(f"time with {WARM} / {COLD}", ratio(costs[WARM], costs[COLD]), LIMIT, at_most=True, reason=why)
    return report.close()


def start(options: argparse.Namespace, folder: Path, words: Sequence[str]) -> Side:
    """A side: the command in a folder of its own, of which the cold side keeps nothing."""
    trains = [*(TINY if options.smoke else TRAINS), *words]
    command = [sys.executable, "-m", "slipway", "run", "--nproc-per-node=1", f"--runs={folder / 'runs'}", *trains]

    def once() -> Cost:
        if folder.name == "cold":
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        folder.mkdir(exist_ok=True)
        caches = {name: str(folder / part) for name, part in CACHES.items()}
        environ = {**bare_environment(), **caches, "CUDA_VISIBLE_DEVICES": visible(options)}
        return until_first_step(command, folder, environ)

    return once


def visible(options: argparse.Namespace) -> str:
    """The one GPU that the command shall see, of those that this process does; none for a CPU."""
    if options.device.type == "cpu":
        return ""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return seen.split(",")[options.device.index] if seen else str(options.device.index)


def until_first_step(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Cost:
    """Run the command, and stop it after its first step. Raises RuntimeError with its last lines where it fails."""
    with (folder / "output").open("w+b") as output:
        begun, stopped = time.time(), False
        process = subprocess.Popen(command, cwd=folder, env=dict(environ), stdout=output, stderr=subprocess.STDOUT)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if not stopped and first_line(folder / "runs"):
                process.send_signal(signal.SIGTERM)
                stopped = True
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        if process.returncode not in ENDS or not (line := first_line(folder / "runs")):
            output.seek(0)
            said = output.read().decode(errors="replace").splitlines()[-20:]
            raise RuntimeError("\n".join([f"it ended with {process.returncode}:", *said]))
    first = json.loads(line)
    if first["step"] != 1:
        raise RuntimeError(f"the metrics begin with step {first['step']}")
    return Cost(first["time"] - begun, ended[2].ru_utime + ended[2].ru_stime)


def first_line(runs: Path) -> str:
    """The first line of metrics, empty before there is one."""
    for file in runs.glob("*/metrics.jsonl"):
        line, newline, _ = file.read_text().partition("\n")
        return line if newline else ""
    return ""


if __name__ == "__main__":
    sys.exit(main())
