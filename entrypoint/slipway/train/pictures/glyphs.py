"""`glyphs`: the ten digits in Pillow's own font, distorted by chance; as many pictures as CIFAR-10 has, of its shape.

Colours, noise, lines and other digits at the border are in the way, so that even a good network misreads some.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from slipway.train.pictures.arrays import Arrays, read_arrays, write_arrays
from slipway.train.pictures.distortion import Recipe, distort
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import cache_folder, make_together

CLASSES = tuple("0123456789")
MEAN, DEVIATION = (0.5, 0.5, 0.5), (0.31, 0.31, 0.31)  # of each channel, 0 … 1
SIZE, TRAIN, EVALUATION = 32, 50_000, 10_000
PIECE = 500  # pictures that are distorted at once, each piece from a seed of its own


def open_glyphs(context: Context) -> tuple[Arrays, str]:
    """The pictures, and what identifies them; made once per node and kept in the cache. By every rank."""
    recipe, glyphs = Recipe(), draw_glyphs()
    # The font is in the name too: another version of Pillow may draw it differently. What is made of it is not, for
    # processors may round differently, and a pixel that is one brighter on one node is no reason to refuse it.
    parts = [json.dumps([asdict(recipe), SIZE, TRAIN, EVALUATION, PIECE]).encode(), glyphs.numpy().tobytes()]
    name = f"glyphs-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    folder = cache_folder(os.environ) / name
    make_together(context, folder, partial(make_glyphs, glyphs, recipe))
    return read_arrays(folder)[0], name


def draw_glyphs() -> torch.Tensor:
    """The digits in three weights, as uint8 of shape (3, 10, 48, 48)."""
    font = ImageFont.load_default(32)
    drawn = []
    for stroke in range(3):
        for character in CLASSES:
            canvas = Image.new("L", (48, 48))
            ImageDraw.Draw(canvas).text((24, 24), character, 255, font, anchor="mm", stroke_width=stroke)
            drawn.append(np.asarray(canvas))
    return torch.from_numpy(np.stack(drawn)).view(3, len(CLASSES), 48, 48)


def make_glyphs(glyphs: torch.Tensor, recipe: Recipe, folder: Path, tick: Callable[[], None]) -> None:
    """Make all pictures and write them into `folder`. Raises OSError."""
    made = []
    for number in range((TRAIN + EVALUATION) // PIECE):
        made.append(distort(glyphs, recipe, SIZE, PIECE, seed=number))
        tick()
    pictures, labels = (torch.cat(parts).numpy() for parts in zip(*made, strict=True))
    arrays = Arrays(pictures[:TRAIN], labels[:TRAIN], pictures[TRAIN:], labels[TRAIN:])
    write_arrays(folder, arrays, tick)
