"""Python runs this at its start where PYTHONPATH leads here: a training leaves parts of what watches over it out, in turn.

Some dozen steps go with PARTS (names, each in a line) switched on or off, then the next dozen in another way; all ways come
once, in an order by chance, before any comes again. Rank 0 writes the file SWITCHED at the end: of each dozen the names of what
was on, and the seconds that a step took; and the interval of replays that the training chose. Where they are on, one comes every
OFTEN steps instead, since a dozen steps would seldom have one. Lengths differ, or what happens every so many steps would always
come in the same way.
"""

import atexit
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHORTEST, LONGEST = 9, 15  # steps that go one way
WARM = 80  # steps before the first: intervals are chosen, compilers have done their work
MEMORY, WATCHING, REPLAYS = "snapshots in memory", "comparing replicas and ranks", "replaying micro-batches"
OFTEN = 10  # steps between two replays

Switch = Callable[[], None]


class Switches:
    """What is on, step by step, of one training."""

    def __init__(self, keep_in_memory: Callable[..., Any]) -> None:
        """`keep_in_memory`: the loop's own, after each step; the boundary of a user's loop."""
        self._keep = keep_in_memory
        self._chance = random.Random(0)  # the same on all ranks
        self._parts = os.environ["PARTS"].splitlines()
        self._ways = self._draw(self._parts)
        self._on, self._length = frozenset({MEMORY, WATCHING, *self._parts}), WARM
        self._steps, self._begun = 0, 0.0
        self._put_back: Switch = lambda: None
        self.found: list[tuple[list[str], float]] = []
        self.interval = 0  # steps between two replays, as the training chose

    def _draw(self, parts: list[str]) -> Iterator[frozenset[str]]:
        ways = [
            frozenset(itertools.compress(parts, chosen))
            for chosen in itertools.product((True, False), repeat=len(parts))
        ]
        while True:
            yield from self._chance.sample(ways, len(ways))

    def step(self, training: Any) -> None:
        """After each step of a workload, by all ranks."""
        if MEMORY in self._on:
            self._keep(training)
        else:
            training.snapshots.rhythm.due += 1  # as far from the next as when it was switched off
        self._count(training)

    def boundary(self, run: Any, *args: Any, **more: Any) -> bool:
        """In place of a boundary of a user's own loop."""
        run._snapshots.rhythm.due += MEMORY not in self._on
        ended: bool = self._keep(run, *args, **more)
        self._count(run)
        return ended

    def _count(self, training: Any) -> None:
        self._steps += 1
        if self._steps == self._length:
            self._switch(training)

    def _switch(self, training: Any) -> None:
        now = time.perf_counter()
        if self._length != WARM:
            self.found.append((sorted(self._on), (now - self._begun) / self._length))
        elif REPLAYS in self._parts:
            self.interval = training.replays._every
        self._put_back()
        self._on, self._length, self._steps = next(self._ways), self._chance.randint(SHORTEST, LONGEST), 0
        self._put_back = leave_out_watching(training) if WATCHING in {*self._parts} - self._on else lambda: None
        if REPLAYS in self._parts:
            training.replays._every = OFTEN if REPLAYS in self._on else 0
        self._begun = time.perf_counter()

    def write(self) -> None:
        """At the end."""
        if os.environ["RANK"] == "0":
            Path(os.environ["SWITCHED"]).write_text(json.dumps({"switched": self.found, "interval": self.interval}))


def leave_out_watching(training: Any) -> Switch:
    """Compare neither replicas nor ranks' own times until what is returned is called."""
    verification, stragglers = training.verification, training.stragglers
    own_time = stragglers.own_time
    for hook in own_time._hooks:
        hook.remove()
    own_time._hooks = []
    verification.check = lambda step: None
    stragglers.check = lambda: None

    def put_back() -> None:
        del verification.check, stragglers.check
        own_time.settle(all_of_them=False)
        own_time.drop()
        stragglers._since = time.perf_counter()

    return put_back


if "LOCAL_RANK" in os.environ and "SWITCHED" in os.environ:
    import slipway.train.loop.fit as loop
    from slipway.train.user.run import ResumableRun

    if any(name.endswith("own.py") for name in sys.orig_argv):
        switches = Switches(ResumableRun.boundary)
        ResumableRun.boundary = lambda *args, **more: switches.boundary(*args, **more)  # type: ignore[method-assign]
    else:
        switches = Switches(loop.keep_in_memory)
        loop.keep_in_memory = switches.step
    atexit.register(switches.write)
