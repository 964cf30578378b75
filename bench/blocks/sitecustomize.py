"""Python runs this at its start where PYTHONPATH leads here: a training goes in blocks of steps, some of which leave a part out.

Rank 0 writes the file BLOCKS: of each block its name and the seconds that a step of it took, the first few left out. Every
other block is as users have it; those between leave out one of LEFT_OUT, in turn. Their lengths differ, or what happens every
so many steps would always come in the same ones.
"""

import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHORTEST, LONGEST = 33, 47  # steps of a block
SETTLES = 4  # of them at the beginning, which do not count
WARM = 80  # steps before the first block: intervals are chosen, compilers have done their work
WHOLE, MEMORY, WATCHING = "all", "without snapshots in memory", "without comparing replicas and ranks"
LEFT_OUT = (MEMORY, WATCHING)


class Blocks:
    """The blocks of one training."""

    def __init__(self, keep_in_memory: Callable[[Any], None]) -> None:
        """`keep_in_memory`: the loop's own, after each step."""
        self._keep = keep_in_memory
        self._lengths = random.Random(0)  # the same on all ranks
        self._names = itertools.cycle(itertools.chain.from_iterable((WHOLE, name) for name in LEFT_OUT))
        self._name, self._length = WHOLE, WARM
        self._moments: list[float] = []
        self._found: list[tuple[str, float]] = []
        self._put_back: Callable[[], None] = lambda: None

    def step(self, training: Any) -> None:
        """After each step, by all ranks."""
        if self._name == MEMORY:
            training.rhythm.due += 1  # as far from the next as when the block began
        else:
            self._keep(training)
        self._moments.append(time.perf_counter())
        if len(self._moments) > self._length:
            self._end(training)

    def _end(self, training: Any) -> None:
        seconds = (self._moments[-1] - self._moments[SETTLES]) / (self._length - SETTLES)
        if self._length != WARM:
            self._found.append((self._name, seconds))
        self._put_back()
        self._name, self._length = next(self._names), self._lengths.randint(SHORTEST, LONGEST)
        self._put_back = leave_out_watching(training) if self._name == WATCHING else lambda: None
        if training.context.place.rank == 0 and self._name == WHOLE:
            file = Path(os.environ["BLOCKS"])
            new = file.with_suffix(".new")
            new.write_text(json.dumps(self._found))
            new.rename(file)
        self._moments = [time.perf_counter()]


def leave_out_watching(training: Any) -> Callable[[], None]:
    """Compare neither replicas nor ranks' own times until what is returned is called."""
    verification, stragglers = training.verification, training.stragglers
    own_time = stragglers.own_time
    kept = verification._every, stragglers._group
    for each in (verification, stragglers):
        each.forget()
    for hook in own_time._hooks:
        hook.remove()
    verification._every, stragglers._group, own_time._hooks = 0, None, []

    def put_back() -> None:
        verification._every, stragglers._group = kept
        own_time.settle(all_of_them=False)

    return put_back


if "LOCAL_RANK" in os.environ and "BLOCKS" in os.environ:
    import slipway.train.loop.fit as loop

    loop.keep_in_memory = Blocks(loop.keep_in_memory).step
