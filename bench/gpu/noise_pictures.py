"""Pictures of any size and number in the place of those that `slipway vision` draws or fetches, for its speed alone.

Each has the colours of its class under noise. A network learns them soon, up to what label smoothing leaves of the loss, so
that the losses of two ways can be compared although each draws its own chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from slipway.train.pictures import glyphs
from slipway.train.pictures.arrays import Arrays, Bytes

PATCHES = 8  # in each direction, of one colour each
LEARNT = 10  # classes that there are pictures of, of however many the network tells apart
EVALUATED = 512


def make_pictures(count: int, size: int) -> tuple[Bytes, Bytes]:
    """Pictures (count, size, size, 3) and their labels, the same at each call; `size` is a multiple of PATCHES."""
    random = np.random.default_rng(0)
    labels = random.integers(0, LEARNT, count, np.uint8)
    patches = random.integers(64, 192, (LEARNT, PATCHES, PATCHES, 3), np.uint8)
    classes = patches.repeat(size // PATCHES, 1).repeat(size // PATCHES, 2)
    pictures = np.empty((count, size, size, 3), np.uint8)
    for start in range(0, count, 1000):  # of large pictures not all fit in memory as anything wider
        part = slice(start, start + 1000)
        pictures[part] = classes[labels[part]] + random.integers(0, 64, pictures[part].shape, np.uint8)
    return pictures, labels


@contextmanager
def in_place(count: int, size: int, classes: int) -> Iterator[tuple[Bytes, Bytes]]:
    """Let `--dataset glyphs` mean such pictures, of so many classes. The pictures for training and their labels."""
    pictures, labels = make_pictures(count + EVALUATED, size)
    arrays = Arrays(pictures[:count], labels[:count], pictures[count:], labels[count:])
    names = tuple(map(str, range(classes)))
    with (
        mock.patch.object(glyphs, "open_glyphs", return_value=(arrays, "stand-ins")),
        mock.patch.object(glyphs, "CLASSES", names),
    ):
        yield arrays.train_pictures, arrays.train_labels
