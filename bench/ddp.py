"""What DistributedDataParallel costs two processes on CPUs, as Slipway sets it up, against training without exchange.

    python bench/ddp.py [--rounds 8]

Two processes with one thread each, joined by gloo. In turns they take a block of steps together and a block each for itself:
the same model, and the same batch per process, without DistributedDataParallel. Efficiency is the time of the second over
the time of the first. Two GPTs, and a sweep over DDP's options. What bounds the efficiency is measured beside it: all-reduce
and stop flag by themselves, and the wait for the slower process.
"""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from ddp_job import Block, Job, Side, mean
from report import Report, options_parser, read_options
from sides import Spread

EFFICIENCY = 0.89
AGREE = 0.01  # by how much the losses may differ
ALONE, DEFAULT = "each alone", "together, Slipway's defaults"
CHECKED, WHOLE = "together, checked", "one process with the samples of both"
SWEEP = {
    "buckets of 1 MB": Side("--bucket-mb 1"),
    "buckets of 5 MB": Side("--bucket-mb 5"),
    "buckets of 100 MB": Side("--bucket-mb 100"),
    "gradients in bf16": Side("--comm bf16"),
    "gradients in fp16": Side("--comm fp16"),
    "static graph": Side("--static-graph"),
    "gradients copied into buckets": Side("", view=False),
}


@dataclass(frozen=True)
class Case:
    """A model, its batch per process in `parts`, the steps of a block, and what is swept over besides the defaults."""

    name: str
    words: str
    batch: int
    parts: int
    steps: int
    swept: Mapping[str, Side]

    def sides(self) -> dict[str, Side]:
        """All its sides, each by name."""
        words = f"{self.words} --steps 100000 --warmup 100 --lr 1e-3"
        own = f"{words} --accumulate {self.parts} --batch-size-per-process {self.batch}"
        whole = f"{words} --accumulate {2 * self.parts} --batch-size-per-process {2 * self.batch}"
        sides = {ALONE: Side(own, alone=True), DEFAULT: Side(own), CHECKED: Side(own), WHOLE: Side(whole, alone=True)}
        return sides | {name: replace(side, words=f"{own} {side.words}") for name, side in self.swept.items()}


SMALL = Case("GPT L4/E128/T64, batch 12 per process", "--layers 4 --embed 128 --heads 4 --context 64", 12, 1, 20, SWEEP)
LARGE = Case(
    "GPT L4/E256/T128, batch 4 per process, accumulate 2", "--layers 4 --embed 256 --heads 4 --context 128", 8, 2, 6,
    {name: SWEEP[name] for name in ("buckets of 1 MB", "buckets of 5 MB", "gradients in bf16")},
)  # fmt: skip
SMOKE = Case("a tiny GPT", "--layers 1 --embed 32 --heads 2 --context 16", 4, 2, 2, {"copied": Side("", view=False)})


def main() -> int:
    """Measure all cases; 1 where a target is missed without a reason."""
    options = read_options(options_parser(__doc__))
    report = Report(
        "Data-parallel training on CPUs",
        "2 processes, gloo, OMP_NUM_THREADS=1, fp32. All sides take turns in the same processes. Efficiency is the time of "
        "the same steps without exchange, in both processes at once, divided by the time with Slipway's "
        "DistributedDataParallel.",
        options,
    )
    cases = [SMOKE] if options.smoke else [SMALL, LARGE]
    sides = {f"{case.name}: {name}": side for case in cases for name, side in case.sides().items()}
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), 2, sides) as job:
        for case in cases:
            Measurement(job, case, report).tell()
    return report.close()


class Measurement:
    """One case."""

    def __init__(self, job: Job, case: Case, report: Report) -> None:
        """Nothing is measured yet."""
        self.job, self.case, self.report = job, case, report
        self.blocks: dict[str, list[list[Block]]] = {}  # by side, round and rank

    def tell(self) -> None:
        """Efficiency, what bounds it, and the sweep."""
        self.check_losses()
        self.take_turns()
        bound = self.tell_bound()
        columns = ["", "buckets", "ms per step", "CPU ms", "efficiency", "by CPU seconds", "loss"]
        self.report.table(
            f"{self.case.name}: {self.case.steps} steps a block", columns, [self.row(side) for side in self.blocks]
        )
        self.report.target(f"{self.case.name}: efficiency", self.efficiency(DEFAULT), EFFICIENCY, reason=bound)

    def ask(self, question: str, side: str, *words: object) -> list[float]:
        """The answers of the job's processes about one side."""
        return self.job.ask(question, f"{self.case.name}: {side}", *words)

    def check_losses(self) -> None:
        """See that two processes learn what one learns from the same samples. Raises RuntimeError."""
        for side in (WHOLE, CHECKED):
            self.ask("take", side, self.case.steps)
        one, two = (fmean(self.ask("loss", side)) for side in (WHOLE, CHECKED))
        told = f"{two:.5f} by two processes together, {one:.5f} by one with the samples of both"
        if not abs(one / two - 1) <= AGREE:
            raise RuntimeError(f"{self.case.name}: the losses differ: {told}")
        self.report.note(f"\n{self.case.name}: loss of the first {self.case.steps} steps {told}")

    def take_turns(self) -> None:
        """Every side once to warm up, then in each round all of them; every other round in the opposite order."""
        sides = [ALONE, DEFAULT, *self.case.swept]
        self.blocks = {side: [] for side in sides}
        for number in range(-1, self.report.options.rounds):
            for side in sides if number % 2 else reversed(sides):
                blocks = self.job.ask("take", f"{self.case.name}: {side}", self.case.steps)
                if number >= 0:
                    self.blocks[side].append(blocks)

    def efficiency(self, side: str, cpu: bool = False) -> Spread:
        """The time of the processes alone over the time of a side, round by round."""
        pairs = zip(self.blocks[ALONE], self.blocks[side], strict=True)
        return Spread.of([mean(one, cpu) / mean(other, cpu) for one, other in pairs])

    def row(self, side: str) -> list[str]:
        """A side's row of the table."""
        times = [1e3 * median(mean(each, cpu) for each in self.blocks[side]) / self.case.steps for cpu in (False, True)]
        ratios = [str(self.efficiency(side, cpu)) for cpu in (False, True)]
        loss = f"{fmean(self.ask('loss', side)):.3f}"
        return [side, str(self.ask("buckets", side)[0] or "-"), *[f"{time:.2f}" for time in times], *ratios, loss]

    def tell_bound(self) -> str:
        """Measure and print what a step together must take longer than one alone. Returns it in a sentence."""
        elements, calls = int(self.ask("parameters", DEFAULT)[0]), 2 if self.report.options.smoke else 40
        self.job.ask("reduce", elements, calls)
        reduce, flag = self.job.ask("reduce", elements, calls), self.job.ask("agree", calls)
        steps = [step for blocks in self.blocks[ALONE] for step in zip(*(block.each for block in blocks), strict=True)]
        alone, slower = 1e3 * fmean(map(fmean, steps)), 1e3 * fmean(map(max, steps))
        together = 1e3 * fmean(fmean(block.each) for blocks in self.blocks[DEFAULT] for block in blocks)
        sums, work, word = (1e3 * time / calls for time in (mean(reduce), mean(reduce, cpu=True), mean(flag)))
        parts = {
            "a step alone": alone,
            "+ the wait, at every step, for the slower of the two": slower - alone,
            f"+ an all-reduce of {4 * elements / 1e6:.1f} MB by itself ({work:.2f} ms of CPU)": sums,
            "= what a step together takes if nothing overlaps": slower + sums,
            "a step together, as measured": together,
            "the stop flag by itself, which overlaps": word,
        }
        rows = [[text, f"{time:.2f}"] for text, time in parts.items()]
        self.report.table(f"{self.case.name}: what bounds it, means", ["", "ms"], rows)
        return (
            f"a step takes {together - alone:.1f} ms more than the {alone:.1f} ms alone; the wait for the slower process is "
            f"{slower - alone:.1f} ms, gloo's all-reduce by itself {sums:.1f} ms, of which {work:.1f} ms are CPU time "
            "that training has to give up"
        )


if __name__ == "__main__":
    sys.exit(main())
