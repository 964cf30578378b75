"""How training scales on this machine: jobs of 1, 2 and 4 processes, the same batch for each process.

    python bench/scaling.py [--rounds 8]

One thread per process, gloo. All jobs are there at once, and take turns block by block while the others sleep. On two cores
four processes are twice too many: what counts then is what a sample costs in CPU time, and that no time is lost besides.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from ddp_job import Block, Job, Side
from report import Report, options_parser, read_options
from sides import Spread

PROCESSES = (1, 2, 4)
STEPS = "--steps 100000 --warmup 100 --lr 1e-3"
CASES = {  # words, samples per process and step, steps of a block
    "GPT L4/E128/T64, batch 12 per process": ("--layers 4 --embed 128 --heads 4 --context 64", 12, 1, 16),
    "GPT L4/E256/T128, batch 4 per process, accumulate 2": ("--layers 4 --embed 256 --heads 4 --context 128", 8, 2, 4),
}
SMOKE = {"a tiny GPT": ("--layers 1 --embed 32 --heads 2 --context 16", 4, 1, 2)}


def main() -> int:
    """Print the tables."""
    options = read_options(options_parser(__doc__))
    report = Report(
        "Scaling over processes on CPUs",
        "Jobs of 1, 2 and 4 processes take turns: gloo, OMP_NUM_THREADS=1, fp32, the same batch per process.",
        options,
    )
    cases = SMOKE if options.smoke else CASES
    sides = {
        name: Side(f"{words} {STEPS} --accumulate {parts} --batch-size-per-process {batch}")
        for name, (words, batch, parts, _) in cases.items()
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counts = PROCESSES[:2] if options.smoke else PROCESSES
        jobs = {count: stack.enter_context(Job(folder, count, sides)) for count in counts}
        for name, (_, batch, _, steps) in cases.items():
            measure(jobs, name, batch * steps, steps, report)
    return report.close()


def measure(jobs: dict[int, Job], name: str, samples: int, steps: int, report: Report) -> None:
    """One model: all jobs in each round, every other round in the opposite order, after one to warm up."""
    blocks: dict[int, list[list[Block]]] = {count: [] for count in jobs}
    for number in range(-1, report.options.rounds):
        for count in jobs if number % 2 else reversed(jobs):
            taken = jobs[count].ask("take", name, steps)
            if number >= 0:
                blocks[count].append(taken)
    rows = []
    for count, job in jobs.items():
        speeds = [count * samples / max(block.wall for block in round_) for round_ in blocks[count]]
        singles = [samples / round_[0].wall for round_ in blocks[1]]
        costs = [1e3 * sum(block.cpu for block in round_) / (count * samples) for round_ in blocks[count]]
        gains = [speed / single for speed, single in zip(speeds, singles, strict=True)]
        loss = fmean(job.ask("loss", name))
        speed, gain, cost = (Spread.of(values) for values in (speeds, gains, costs))
        rows.append([f"{count}", speed.told(0), str(gain), str(cost), f"{loss:.3f}"])
    columns = ["processes", "samples/s, all together", "times one process", "CPU ms per sample", "loss"]
    report.table(f"{name}: {steps} steps a block", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
