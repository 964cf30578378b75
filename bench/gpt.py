"""How fast a small GPT learns on a CPU: `slipway gpt`, nanoGPT's loop, accelerate and Lightning Fabric.

    python bench/gpt.py [--rounds 8] [--compile] [--smoke] [--json FILE]

Each side is a training of two processes of its own. They begin with the same weights, have the same text and the same schedule,
and take turns in blocks of steps; in the end all are judged on the same samples. Beside them runs what no loop can do
without: forward and backward of the model alone. --compile lets accelerate and Fabric compile their model. It is no default:
of CPU time it gained accelerate 2 % and Fabric nothing, and more than half a minute went by before their first step.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
from peers.jobs import Job
from peers.plan import Plan, Size
from report import Report, options_parser, read_options
from sides import Cost, Spread, ratio

from slipway.train.text.files import read_stdlib

OURS, NANOGPT, ACCELERATE, FABRIC = "slipway gpt", "nanoGPT", "accelerate", "Fabric"
MODEL, PRODUCTS = "the model alone", "its matrix products alone"
FLOORS = (MODEL, PRODUCTS)
MODULES = {OURS: "slipway_loop", NANOGPT: "nanogpt", ACCELERATE: "accelerate_loop", FABRIC: "fabric_loop"}
# The first is the one that nanoGPT's README has for a CPU.
SIZES = {
    Size("small", layers=4, embed=128, context=64, batch=12, parts=1): 500,  # steps
    Size("bigger", layers=4, embed=256, context=128, batch=4, parts=2): 126,
}
TINY = Size("tiny", layers=1, embed=32, context=16, batch=2, parts=2)
TARGETS = {"small": 2.2, "bigger": 2.7}  # times nanoGPT, at least
FRAMEWORKS = 1.35  # times accelerate and Fabric
LIKE_FOR_LIKE = 1.02  # times nanoGPT, in fp32
CLOSE = 0.01  # of the peers' loss


@dataclass(frozen=True)
class Measured:
    """Seconds of a step in each block after the first, by side, and what each was judged to lose in the end."""

    plan: Plan
    precision: str
    costs: Mapping[str, list[Cost]]
    losses: Mapping[str, float]

    def times(self, name: str, other: str = OURS) -> Spread:
        """So many times as long as the other one's is the step of `name`."""
        return ratio(self.costs[name], self.costs[other])


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--compile", action="store_true", help="torch.compile for accelerate's and Fabric's model")
    options = read_options(parser)
    report = Report(
        "GPT on a CPU",
        f"`{OURS}`, the whole loop, against the same model, text, schedule and number of steps in the other libraries, each "
        "with its best options: two processes with one thread each, gloo. A turn ends with a barrier. CPU is the CPU time of "
        "both processes.",
        options,
    )
    for size, steps in {TINY: 4}.items() if options.smoke else SIZES.items():
        best = tell(report, measure(report, size, steps, "auto"), best=True)
        if best != "fp32":
            tell(report, measure(report, size, steps, "fp32"), best=False)
    return report.close()


def measure(report: Report, size: Size, steps: int, precision: str) -> Measured:
    """Train all in turn, and judge them."""
    rounds = report.options.rounds
    block = max(1, steps // (rounds + 1))
    costs: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plan = Plan(size, precision, block * (rounds + 1), block, report.options.compile, folder)
        np.frombuffer(read_stdlib().train, np.uint8).astype(np.uint16).tofile(plan.text)
        jobs = {name: stack.enter_context(closing(Job(module, plan))) for name, module in MODULES.items()}
        jobs[MODEL] = stack.enter_context(closing(Job("floor", plan)))
        precision = jobs[MODEL].answer()
        for number in range(rounds + 1):
            for name in jobs if number % 2 else reversed(jobs):
                answers = jobs[name].take_turn()
                for each, cost in zip(FLOORS if name == MODEL else [name], answers, strict=True) if number else ():
                    costs[each].append(Cost(*cost))
        return Measured(plan, precision, costs, {name: jobs[name].answer() for name in MODULES})


def tell(report: Report, measured: Measured, best: bool) -> str:
    """Add tables and targets; `best` where everyone trained in the precision that is fastest here. Returns which it was."""
    plan, precision = measured.plan, measured.precision
    size = plan.size
    arithmetic = "all in fp32" if precision == "fp32" else f"{NANOGPT} in fp32, the others in {precision}"
    report.table(
        f"{size.name}: {size.layers} layers, {size.embed} wide, {size.context} tokens, batches of {size.batch} × "
        f"{size.parts}, {plan.steps} steps, {arithmetic}",
        ["way", "tokens a second", "CPU ms a step", "loss"],
        [row(measured, name) for name in MODULES],
    )
    report.table(
        f"{size.name}: what bounds a step in {precision}",
        ["what", "ms a step", f"of {OURS}'s", f"{NANOGPT}'s step takes so many times as long"],
        [floor(measured, name) for name in (OURS, *FLOORS)],
    )
    targets = {NANOGPT: TARGETS.get(size.name, 1.0), ACCELERATE: FRAMEWORKS, FABRIC: FRAMEWORKS} if best else {}
    for name, least in targets.items():
        what = f"{size.name}, best against best, {OURS} / {name}"
        report.target(what, measured.times(name), least, reason=explain(measured, name))
    if precision == "fp32":
        what = f"{size.name}, like for like, {OURS} / {NANOGPT}"
        report.target(what, measured.times(NANOGPT), LIKE_FOR_LIKE, reason=explain(measured, NANOGPT))
    ours, *others = (measured.losses[name] for name in MODULES)
    apart = Spread.of([abs(ours / other - 1) for other in others])
    report.target(f"{size.name}, {precision}: losses lie apart by", apart, CLOSE, "of the peers'", at_most=True)
    return precision


def row(measured: Measured, name: str) -> list[str]:
    """What a side did."""
    costs, tokens = measured.costs[name], measured.plan.size.tokens
    speed = Spread.of([1e-3 * tokens / cost.wall for cost in costs])
    cpu = 1e3 * Spread.of([cost.cpu for cost in costs]).median
    return [name, speed.told(1, " k"), f"{cpu:.1f}", f"{measured.losses[name]:.4f}"]


def floor(measured: Measured, name: str) -> list[str]:
    """What no side can do without, beside our step and nanoGPT's."""
    step = Spread.of([1e3 * cost.wall for cost in measured.costs[name]])
    share, longer = measured.times(name).median, measured.times(NANOGPT, name).median
    return [name, step.told(1), f"{share:.0%}", f"{longer:.2f}"]


def explain(measured: Measured, name: str) -> str:
    """Why it is not more."""
    model, products = (f"{measured.times(each).median:.0%}" for each in FLOORS)
    without = ", as this CPU has no fast bf16," if measured.precision == "fp32" else ""
    return (
        f"in {measured.precision}{without} forward and backward of the model, which every side needs, take {model} of "
        f"{OURS}'s step, their matrix products by themselves {products}; with nothing else to do at all it would be "
        f"{measured.times(name, MODEL).median:.2f} × {name}"
    )


if __name__ == "__main__":
    sys.exit(main())
