"""How much of a job's time is training, by how often nodes fail: a model, and a simulation with the launcher's own decisions.

    python bench/failures.py [--rate 0.005] [--restart 0.8] [--replace 120] [--days 200]

The model is Daly's (doi:10.1016/j.future.2004.11.016), for failures that strike at any moment, also while the job is started
again: a snapshot every `interval` seconds, for which training stands still for `stall`. Nothing here is measured, and nothing
trains: what a failure costs on a machine is measured by bench/recovery.py, from which `notice` and `restart` are, and told of a
real job by its ledger (docs/fault-tolerance.md).
"""

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.restarts import Try, count_failures, decide
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.outcomes import Word

DAY = 86_400.0  # s
NODES = (16, 256, 4_096)
INTERVALS = (600.0, 60.0)  # s
MEMORY = {
    "interval": 1.0,
    "stall": 0.01,
}  # s between snapshots in memory, and for each: train/worker/rhythm.py, MEMORY_SHARE
RESTARTS = 3  # that a job of ours may have in a row without progress, and had in all before progress renewed them
KILLED = Cause(CauseKind.KILLED)


@dataclass(frozen=True)
class Case:
    """A job of so many `nodes`, each of which fails `rate` times a day; in the share `lost` of failures the node goes away and is
    replaced. All else is in seconds: to notice a failure, to start again from the newest snapshot, for a new node to come.
    """

    nodes: int
    rate: float = 0.005
    lost: float = 0.5
    notice: float = 0.4
    restart: float = 0.8
    replace: float = 120.0
    interval: float = 600.0
    stall: float = 0.05

    @property
    def per_second(self) -> float:
        """Failures of the whole job per second."""
        return self.nodes * self.rate / DAY

    @property
    def recoveries(self) -> tuple[tuple[float, float], ...]:
        """How likely each kind of failure is, and the seconds until training goes on."""
        again = self.notice + self.restart
        return ((1 - self.lost, again), (self.lost, again + self.replace))


def share_of_training(case: Case) -> float:
    """The share of time in which steps are done that count, in the long run."""
    rate = case.per_second
    undisturbed = sum(share * math.exp(-rate * seconds) for share, seconds in case.recoveries)
    segment = (math.exp(rate * (case.interval + case.stall)) - 1) / (rate * undisturbed)
    return case.interval / segment


def days_until_given_up(case: Case, restarts: int = RESTARTS) -> float:
    """How long a job lasts that may be started again so often in all, whatever it does between: as it was without progress."""
    return (restarts + 1) / case.per_second / DAY


@dataclass(frozen=True)
class Simulated:
    """What became of a job: the share of time that was training, its failures, and whether it was given up."""

    share: float
    failures: int
    given_up: bool


def simulate(case: Case, days: float, seed: int = 0) -> Simulated:
    """A job of so many days, with failures at random and the launcher's decisions. Positions are in seconds of training."""
    chance = random.Random(seed)
    now = position = highest = 0.0
    tries: tuple[Try, ...] = ()
    failures, wait = 0, case.restart
    for number in _count():
        lasted = chance.expovariate(case.per_second)
        trained = max(0.0, lasted - wait) * case.interval / (case.interval + case.stall)
        reached, saved = position + trained, position + trained // case.interval * case.interval
        now += lasted
        lost = chance.random() < case.lost
        made = Try(
            number,
            Outcome(0, "n0", Word.LOST, 0.0) if lost else Outcome(0, "n0", Word.FAILED, 0.0, cause=KILLED),
            before=round(position),
            after=round(saved),
            moved=trained > 0,
            gained=max(0.0, reached - highest),
        )
        position, highest = saved, max(highest, reached)
        if now >= days * DAY:
            return Simulated(highest / now, number, given_up=False)
        tries = (*tries, made)[-10:]
        failures = count_failures(made, failures)
        decision = decide(tries, failures, RESTARTS)
        if decision.pause is None:
            return Simulated(highest / now, number, given_up=True)
        wait = case.notice + decision.pause + case.restart + case.replace * lost
    raise AssertionError


def _count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def table(case: Case) -> list[tuple[str, ...]]:
    """The rows that docs/fault-tolerance.md shows: nodes, failures a day, and what follows."""
    rows = []
    for nodes in NODES:
        one = replace(case, nodes=nodes)
        shares = [f"{100 * share_of_training(replace(one, interval=interval)):.2f} %" for interval in INTERVALS]
        shares.append(f"{100 * share_of_training(replace(one, **MEMORY)):.2f} %")
        rows.append((f"{nodes:,}", f"{nodes * case.rate:.2g}", f"{days_until_given_up(one):.2g} days", *shares))
    return rows


def main() -> None:
    """Print the model's rows, and what the simulation finds of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("rate", "lost", "notice", "restart", "replace", "stall"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Case, name))
    parser.add_argument("--days", type=float, default=200.0, help="that each simulated job lasts")
    options = vars(parser.parse_args())
    days = options.pop("days")
    case = Case(NODES[0], **options)
    for row in table(case):
        print("  ".join(f"{cell:>12}" for cell in row))
    for nodes in NODES:
        for one in (
            *(replace(case, nodes=nodes, interval=each) for each in INTERVALS),
            replace(case, nodes=nodes, **MEMORY),
        ):
            found = simulate(one, days)
            end = ", given up" if found.given_up else ""
            model = share_of_training(one)
            print(
                f"{nodes:>6,} nodes, every {one.interval:.0f} s: model {model:.2%}, simulated {found.share:.2%} "
                f"over {found.failures} failures{end}"
            )


if __name__ == "__main__":
    main()
