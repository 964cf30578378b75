"""From a training into memory that outlives its processes (snapshots/memory_buffers.py), on all ranks together."""

from __future__ import annotations

import time

from slipway.train.loop.nonfinite import are_finite
from slipway.train.loop.saving import describe, gather_ranks
from slipway.train.loop.training import Training


def keep_in_memory(training: Training) -> None:
    """Take a snapshot of this step into memory where one is due. By all ranks; none waits for a GPU.

    What decides on the next one travels with what the ranks exchange for it anyway. It costs what the dearest rank's copying
    takes, and the exchange of the rank that all others wait for there: in the next step they would have waited as long.
    """
    rhythm, memory = training.rhythm, training.memory
    if training.step < rhythm.due:
        return
    begun = time.perf_counter()
    memory.wait()
    copying = rhythm.copying + memory.seconds if memory.usable else 0.0
    numbers = copying, rhythm.exchanging, rhythm.pace(training.step), float(memory.usable)
    ranks, [copies, exchanges, paces, usable] = gather_ranks(training, *numbers)
    training.parallel.align()
    exchanged = time.perf_counter()
    rhythm.exchanging = exchanged - begun
    if memory.usable:
        tensors, values = training.parallel.collect()
        if memory.start(describe(training, tensors, values, ranks), are_finite):
            rhythm.copying = time.perf_counter() - exchanged
    cost = max(copies) + min(exchanges) if any(copies) else 0.0
    rhythm.go_on(training.step, cost, paces[0], any(usable))
