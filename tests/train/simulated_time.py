"""The time of a rank in a simulated job: it moves only by what a step is said to take, and where the ranks wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from waiting import PATIENCE

from slipway.train.loop import step, training
from slipway.train.loop.loader import Loader
from slipway.train.observe.own_time import HostClock, Moment, OwnTime
from slipway.train.worker.context import Context


class StepClock(HostClock):
    """Seconds, and how many of them this rank was on a processor."""

    def __init__(self) -> None:
        self.time = self.ran = 0.0

    def host(self) -> float:
        return self.time

    def now(self) -> Moment:
        return Moment(self.time, self.ran, 0.0)

    def pass_time(self, seconds: float, on_processor: bool) -> None:
        self.time += seconds
        self.ran += seconds * on_processor

    def meet(self) -> None:
        """Nobody is through before the last one is here."""
        latest = torch.tensor(self.time, dtype=torch.float64)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        self.time = float(latest)


def simulate_time(own: int, seconds: float, slower: Sequence[object]) -> None:
    """Every part of a step takes so many seconds; `slower`: as for faulty_worker, with "processor" for a slow one."""
    rank, what, more = slower
    clock = StepClock()
    late = float(more) if own == rank else 0.0  # type: ignore[arg-type]
    poison, ready, go_on, agree = step.poison, Loader.ready, OwnTime.go_on, Context.agree

    def take_part(loss: torch.Tensor) -> torch.Tensor:
        clock.pass_time(seconds, on_processor=True)
        if what != "data":
            clock.pass_time(late, on_processor=what == "processor")
        return poison(loss)

    def become_ready(loader: Loader, within: float = 0.0) -> bool:
        if what == "data" and late:
            if not within:
                return False
            clock.pass_time(late, on_processor=False)
        return ready(loader, PATIENCE)

    def go_on_together(own_time: OwnTime) -> None:
        clock.meet()
        go_on(own_time)

    def agree_together(context: Context, late: bool = False) -> tuple[str | None, bool]:
        clock.meet()
        return agree(context, late)

    step.poison, Loader.ready = take_part, become_ready  # type: ignore[method-assign]
    OwnTime.go_on, Context.agree = go_on_together, agree_together  # type: ignore[method-assign]
    training.OwnTime = lambda parameters, device: OwnTime(parameters, device, clock)  # type: ignore[misc, assignment]
