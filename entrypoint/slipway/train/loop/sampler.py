"""The order in which samples are visited.

An endless stream of sample indices, epoch after epoch, is cut into batches. Which index stands at which position
depends on the seed alone, never on the number of processes, so a job can go on with another world size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDS = 6  # of the Feistel network; four already pass for a random permutation (Luby and Rackoff, 1988)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit numbers (the finalizer of splitmix64, http://xoshiro.di.unimi.it/splitmix64.c)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class Sampler:
    """An endless stream of sample indices in which each stretch of `size` (an epoch) holds every sample once.

    Every epoch has its own permutation, computed position by position (a Feistel network whose results outside the
    range are sent through it again), so that a billion samples need no memory and any position can be asked for.
    """

    size: int
    seed: int

    def indices(self, position: int, count: int) -> npt.NDArray[np.int64]:
        """Samples at stream positions `position` … `position + count - 1`, shape (count,)."""
        stream = np.arange(position, position + count, dtype=np.uint64)
        epochs, places = np.divmod(stream, np.uint64(self.size))
        keys = self._epoch_keys(epochs)
        places = self._permute(places, keys)
        outside = places >= self.size
        while outside.any():
            places[outside] = self._permute(places[outside], keys[outside])
            outside = places >= self.size
        return places.astype(np.int64)

    def keys(self, position: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A random 64-bit number for each of the `indices` that stand at `position` and after, shape (count,).

        It depends on seed, epoch and sample alone: what a sample looks like is the same whoever prepares it.
        """
        stream = np.arange(position, position + len(indices), dtype=np.uint64)
        samples = mix(indices.astype(np.uint64) + np.uint64(ROUNDS))
        return mix(samples ^ mix(self._epoch_keys(stream // np.uint64(self.size)))).view(np.int64)

    def _epoch_keys(self, epochs: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return mix(mix(epochs + np.uint64(1)) ^ np.uint64(self.seed % 2**64))

    def _permute(self, places: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        half = np.uint64(max(1, ((self.size - 1).bit_length() + 1) // 2))
        mask = (np.uint64(1) << half) - np.uint64(1)
        left, right = places >> half, places & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (mix(right ^ (keys + np.uint64(turn * 0x9E3779B97F4A7C15 % 2**64))) & mask)
        return (left << half) | right
