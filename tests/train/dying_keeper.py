"""A process that keeps a snapshot in memory and dies at one of the operations that this takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from slipway.train.loop.arithmetic import are_finite
from slipway.train.snapshots import memory_buffers
from slipway.train.snapshots.memory_buffers import MemoryBuffers
from slipway.train.snapshots.snapshot import Snapshot

DIED = 9


def make_snapshot(step: int, attempt: int = 1, value: float | None = None) -> Snapshot:
    """The snapshot of a step, whose first tensor holds nothing but the step's number, or `value`."""
    tensors = {
        "model": {"a": torch.full((3, 5), float(step) if value is None else value), "half": torch.arange(7).bfloat16()},
        "optimizer": {"a.step": torch.tensor(float(step)), "nothing": torch.empty(0, 4)},
        "ranks": {"0.cpu": torch.arange(250, dtype=torch.uint8)},
        "none": {},  # as an optimizer that keeps nothing
    }
    return Snapshot(step, {"position": step * 16, "scaler": {}}, tensors, attempt)


def keep(memory: MemoryBuffers, *snapshots: Snapshot) -> None:
    """Keep them, one after the other."""
    for snapshot in snapshots:
        if not memory.start(snapshot, are_finite):
            memory.wait_for_room()
            memory.start(snapshot, are_finite)
        memory.wait()


def unexpected(text: str) -> None:
    """For warnings."""
    raise AssertionError(text)


def keep_and_die(paths: Sequence[str], operation: str) -> None:
    """Keep the snapshot of step 3, and die before the operation."""
    torch.set_num_threads(1)
    calls, real = [], getattr(memory_buffers, operation)

    def die(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == (2 if operation == "write_header" else 1):
            os._exit(DIED)
        return real(*args)

    setattr(memory_buffers, operation, die)
    keep(MemoryBuffers(paths, unexpected), make_snapshot(3))
