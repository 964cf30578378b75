"""What a launch costs: the launcher's own part, and a job of two processes that do nothing, against whoever else starts one.

    .venv/bench/bin/python bench/launch.py [--rounds 8]

The launcher's own part is `slipway plan`, which does all that comes before torchrun and imports no torch; beside it stand an
empty Python and one that imports click. The job is a script that only notes when it began. Slipway starts it with everything
that it has on: logs of each rank, signals, verdict, run directory. torchrun is taken with its static rendezvous, as Slipway
takes it, and as people type it (--standalone); accelerate and Fabric as their manuals show them.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Report, options_parser, read_options
from sides import Cost, Spread, ratio, run, take_turns

ROOT = Path(__file__).parents[1] / ".venv"
PYTHON = ROOT / "bin" / "python"
OWN = 0.060  # s, at most
JOBS: dict[str, tuple[Path, list[str]]] = {
    "slipway": (ROOT / "bin/slipway", ["run", "--nproc-per-node=2"]),
    "torchrun": (
        ROOT / "bin/torchrun",
        ["--nproc-per-node=2", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29511"],
    ),
    "torchrun --standalone": (ROOT / "bin/torchrun", ["--standalone", "--nproc-per-node=2"]),
    "accelerate launch": (
        ROOT / "bench/bin/accelerate",
        # The one launcher for several processes that it has; on a machine without GPUs it starts them as well.
        [
            "launch",
            "--multi_gpu",
            "--num_processes=2",
            "--num_machines=1",
            "--mixed_precision=no",
            "--dynamo_backend=no",
        ],
    ),
    "fabric run": (ROOT / "bench/bin/fabric", ["run", "--accelerator=cpu", "--strategy=ddp", "--devices=2"]),
}
AGAINST = {"torchrun": 0.75, "accelerate launch": 0.55}  # times as long, at most

# Seconds since boot, the one clock in which the kernel tells when a process began (in hundredths).
SCRIPT = """
import time
begun = time.clock_gettime(time.CLOCK_BOOTTIME)
import json, os
def start(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
stamps = {"parent": start(os.getppid()), "worker": start(os.getpid()), "script": begun}
with open(os.path.join(os.environ["STAMPS"], str(os.getpid())), "w") as file:
    json.dump(stamps, file)
"""
STAGES = ("until torchrun's process", "until the workers' processes", "until the script", "until the end")


def main() -> int:
    """Print the tables; 1 where a target is missed for no known reason."""
    options = read_options(options_parser(__doc__))
    report = Report(
        "Launch",
        "A script that does nothing, in two processes on this machine. Times are wall-clock seconds of the whole command.",
        options,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nothing.py").write_text(SCRIPT)
        measure_own(report, folder)
        measure_jobs(report, folder)
    return report.close()


def measure_own(report: Report, folder: Path) -> None:
    """What comes before torchrun."""
    slipway = JOBS["slipway"][0]
    sides = {
        "an empty Python": command(folder, PYTHON, "-c", "pass"),
        "a Python that imports click": command(folder, PYTHON, "-c", "import click"),
        "slipway plan": command(folder, slipway, "plan", "nothing.py"),
    }
    costs = take_turns(sides, report.options.rounds)
    spreads = add_rows(report, "The launcher's own part, up to torchrun", costs)
    bare = spreads["a Python that imports click"].median
    own = spreads["slipway plan"]
    reason = f"Python and click take {bare:.3f} s here, the launcher's own modules {own.median - bare:.3f} s"
    report.target("slipway plan", own, OWN, "s", at_most=True, reason=reason)
    shares = [imports(folder, slipway) for _ in range(report.options.rounds)]
    rows = [[name, f"{1e3 * statistics.median(share[name] for share in shares):.1f}"] for name in shares[0]]
    report.table("What its imports take, as `python -X importtime` tells, which slows them down", ["", "ms"], rows)


def imports(folder: Path, slipway: Path) -> dict[str, float]:
    """Seconds that `slipway plan` spends in the modules of each kind themselves."""
    command = [PYTHON, "-X", "importtime", slipway, "plan", "nothing.py"]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    spent = dict.fromkeys(("Python's own modules", "click", "the launcher's own"), 0.0)
    for line in told.splitlines():
        if line.startswith("import time:") and "self [us]" not in line:
            own, _, name = line.removeprefix("import time:").split("|")
            kinds = {"click": "click", "slipway": "the launcher's own"}
            spent[kinds.get(name.strip().partition(".")[0], "Python's own modules")] += 1e-6 * int(own)
    return spent


def measure_jobs(report: Report, folder: Path) -> None:
    """What jobs without work cost, and where a job's time goes."""
    stages: dict[str, list[list[float]]] = {}
    sides = {
        name: noting(folder, command(folder, program, *words, "nothing.py"), stages.setdefault(name, []))
        for name, (program, words) in JOBS.items()
    }
    costs = take_turns(sides, report.options.rounds)
    add_rows(report, "A job of two processes that do nothing", costs)
    medians = {name: [statistics.median(values) for values in zip(*stages[name], strict=True)] for name in JOBS}
    before, *after = medians["slipway"]
    for name, limit in AGAINST.items():
        reason = (
            f"the launcher's own part is {before:.2f} s before torchrun's process begins; from there on a job takes "
            f"{sum(after):.2f} s, one of {name}'s {sum(medians[name]):.2f} s"
        )
        report.target(f"slipway / {name}", ratio(costs["slipway"], costs[name]), limit, at_most=True, reason=reason)
    rows = [[name, *(f"{seconds:.2f}" for seconds in row)] for name, row in medians.items()]
    report.table("Where a job's time goes, in seconds (hundredths are the kernel's resolution)", ["", *STAGES], rows)


def command(folder: Path, program: Path, *words: str) -> Callable[[], Cost]:
    """A side: a program in a folder without runs, on CPUs."""
    environ = {
        "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "STAMPS": str(folder / "stamps"),
    }

    def once() -> Cost:
        for name in ("runs", "stamps"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "stamps").mkdir()
        return run([str(program), *words], folder, environ)

    return once


def noting(folder: Path, side: Callable[[], Cost], stages: list[list[float]]) -> Callable[[], Cost]:
    """The same side, which adds to `stages` how long each of them took."""

    def once() -> Cost:
        begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        cost = side()
        stamps = [json.loads(file.read_text()) for file in (folder / "stamps").iterdir()]
        marks = [begun, *(max(stamp[name] for stamp in stamps) for name in ("parent", "worker", "script"))]
        marks.append(begun + cost.wall)
        stages.append([max(0.0, after - before) for before, after in itertools.pairwise(marks)])
        return cost

    return once


def add_rows(report: Report, heading: str, costs: dict[str, list[Cost]]) -> dict[str, Spread]:
    """Tell what each side took. Returns their wall seconds."""
    wall = {name: Spread.of([cost.wall for cost in side]) for name, side in costs.items()}
    cpu = {name: Spread.of([cost.cpu for cost in side]) for name, side in costs.items()}
    report.table(
        heading, ["", "wall s", "CPU s"], [[name, str(wall[name]), f"{cpu[name].median:.3f}"] for name in costs]
    )
    return wall


if __name__ == "__main__":
    sys.exit(main())
