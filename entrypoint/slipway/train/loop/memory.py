"""From a training into memory that outlives its processes (snapshots/memory_buffers.py), on all ranks together."""

from __future__ import annotations

import time

from slipway.train.loop.nonfinite import are_finite
from slipway.train.loop.saving import describe, gather_ranks
from slipway.train.loop.training import Training


def keep_in_memory(training: Training) -> None:
    """Take a snapshot of this step into memory where one is due. By all ranks; none waits for a GPU.

    What decides on the next one travels with what the ranks exchange for it anyway.
    """
    rhythm, memory = training.rhythm, training.memory
    if training.step < rhythm.due:
        return
    begun = time.perf_counter()
    memory.wait()
    cost, pace = rhythm.measure(training.step, memory.seconds if memory.usable else 0.0)
    ranks, [costs, paces, usable] = gather_ranks(training, cost, pace, float(memory.usable))
    training.parallel.align()
    spent = time.perf_counter() - begun
    if memory.usable:
        tensors, values = training.parallel.collect()
        memory.start(describe(training, tensors, values, ranks), are_finite, spent)
    rhythm.go_on(training.step, max(costs), paces[0], any(usable))
