"""Whether the samples of a loader draw random numbers in its worker processes: after a resume they would be others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from slipway.train.snapshots.state import other_random_states

LOOKS = 4  # batches of each worker; whatever augments draws in each of them


class NotedCollate:
    """Makes a batch of samples as the loader's own `collate_fn` does, and notes in a worker process whether they draw.

    Who seeds a generator for each sample draws the same again, so a generator that was seeded in between does not count.
    """

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        """`inner` is the loader's own `collate_fn`."""
        self.inner = inner
        self._found = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._before: dict[str, Any] = {}  # in a worker, before the last batch was made
        self._seeded: set[str] = set()
        self._looks = LOOKS

    @property
    def drew(self) -> bool:
        """Whether any worker's samples or batches draw, as far as is known."""
        return bool(self._found)

    def __call__(self, samples: Any) -> Any:
        """Return the batch."""
        if self._looks and get_worker_info() is not None:
            self._look()
        return self.inner(samples)

    def _look(self) -> None:
        if self._looks == LOOKS:
            np.random.seed = self._noting(np.random.seed, "numpy")
            random.seed = self._noting(random.seed, "python")
        states = {name: bytes(state.numpy()) for name, state in other_random_states().items()}
        now = {**states, f"torch {torch.initial_seed()}": bytes(torch.get_rng_state().numpy())}
        drawn = [name for name, state in now.items() if self._before.get(name, state) != state]
        if {*drawn} - self._seeded:
            self._found.fill_(1)
        self._before, self._looks = now, self._looks - 1
        self._seeded.clear()

    def _noting(self, usual: Callable[..., None], name: str) -> Callable[..., None]:
        def seed(*args: Any, **more: Any) -> None:
            self._seeded.add(name)
            usual(*args, **more)

        return seed
