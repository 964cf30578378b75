"""`glyphs`: the ten digits in Pillow's own font, randomly distorted; as many pictures as CIFAR-10 has, of its shape.

Glyphs are placed, bent and coloured, many at once. Colours, noise, lines and other digits at the border are in the way, so
that even a good network misreads some.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional

from slipway.train.pictures.arrays import Arrays, read_arrays, write_arrays
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import cache_folder, make_together

CLASSES = tuple("0123456789")
MEAN, DEVIATION = (0.5, 0.5, 0.5), (0.31, 0.31, 0.31)  # of each channel, 0 … 1
SIZE, TRAIN, EVALUATION = 32, 50_000, 10_000
PIECE = 500  # pictures that are distorted at once, each piece with its own seed


def open_glyphs(context: Context) -> tuple[Arrays, str]:
    """Return the pictures and their identity; they are made once per node and kept in the cache. By every rank."""
    recipe, glyphs = Recipe(), draw_glyphs()
    # The drawn font is part of the name: another version of Pillow may draw it differently. The pictures are not: processors
    # may round differently, and a pixel that is brighter by one on some node is no reason to refuse it.
    parts = [json.dumps([asdict(recipe), SIZE, TRAIN, EVALUATION, PIECE]).encode(), glyphs.numpy().tobytes()]
    name = f"glyphs-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    folder = cache_folder(os.environ) / name
    make_together(context, folder, partial(make_glyphs, glyphs, recipe))
    return read_arrays(folder)[0], name


def draw_glyphs() -> torch.Tensor:
    """Draw the digits in three weights, uint8 of shape (3, 10, 48, 48)."""
    font = ImageFont.load_default(32)
    drawn = []
    for stroke in range(3):
        for character in CLASSES:
            canvas = Image.new("L", (48, 48))
            ImageDraw.Draw(canvas).text((24, 24), character, 255, font, anchor="mm", stroke_width=stroke)
            drawn.append(np.asarray(canvas))
    return torch.from_numpy(np.stack(drawn)).view(3, len(CLASSES), 48, 48)


def make_glyphs(glyphs: torch.Tensor, recipe: Recipe, folder: Path, tick: Callable[[], None]) -> None:
    """Make all pictures and write them to `folder`. Raises OSError."""
    made = []
    for number in range((TRAIN + EVALUATION) // PIECE):
        made.append(distort(glyphs, recipe, SIZE, PIECE, seed=number))
        tick()
    pictures, labels = (torch.cat(parts).numpy() for parts in zip(*made, strict=True))
    arrays = Arrays(pictures[:TRAIN], labels[:TRAIN], pictures[TRAIN:], labels[TRAIN:])
    write_arrays(folder, arrays, tick)


Range = tuple[float, float]


@dataclass(frozen=True)
class Recipe:
    """How much of each distortion; other values make another data set.

    Lengths are in halves of a picture's side, angles in radians, colours and shares from 0 to 1. The model `small` gets
    98 to 99 % right with these values.
    """

    version: int = 1
    tilt: Range = (-0.28, 0.28)
    shrink: Range = (0.7, 1.1)  # the glyph's canvas is this much larger than the picture
    stretch: Range = (0.85, 1.18)
    shear: Range = (-0.25, 0.25)
    offset: Range = (0.0, 0.2)  # of the glyph to recognise
    beside: Range = (1.0, 1.5)  # of the distractor, so that only a part of it is visible
    bend: float = 0.02  # standard deviation of each wave's height
    gradient: Range = (-0.15, 0.15)
    contrast: Range = (0.35, 0.75)
    tint: Range = (-0.2, 0.2)
    lines: float = 0.3  # share of the pictures that are crossed out
    line_width: Range = (0.03, 0.09)
    noise: Range = (0.0, 0.08)


def distort(
    glyphs: torch.Tensor, recipe: Recipe, size: int, count: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures of glyphs, uint8 (count, size, size, 3), and their labels, uint8 (count,).

    `glyphs` are uint8 of shape (variants, classes, height, width). The same seed gives the same pictures.
    """
    chance, ink = Chance(count, seed), glyphs.float() / 255
    labels, others = chance.below(glyphs.shape[1]), chance.below(glyphs.shape[1])
    glyph = place_glyphs(ink, labels, recipe.offset, recipe, size, chance)
    distractor = place_glyphs(ink, others, recipe.beside, recipe, size, chance)
    background = chance.between((0.0, 1.0), 3, 1, 1)
    pictures = background + chance.between(recipe.gradient, 3, 1, 1) * ramp(size, chance)
    for mask, colour in (
        (distractor, contrasting(background, recipe, chance)),
        (glyph, contrasting(background, recipe, chance)),
        (draw_lines(size, recipe, chance), chance.between((0.0, 1.0), 3, 1, 1)),
    ):
        pictures = torch.lerp(pictures, colour.expand_as(pictures), mask.expand_as(pictures))
    pictures += chance.normal(3, size, size) * chance.between(recipe.noise, 1, 1, 1)
    pixels = pictures.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).contiguous(), labels.to(torch.uint8)


def place_glyphs(
    ink: torch.Tensor, labels: torch.Tensor, offset: Range, recipe: Recipe, size: int, chance: Chance
) -> torch.Tensor:
    """Turn, shear, bend and blur glyphs, `offset` away from the middle. Returns the amount of ink, (count, 1, size, size)."""
    angle, zero = chance.between(recipe.tilt), torch.zeros(chance.count)
    stretch, shear = chance.between(recipe.stretch), chance.between(recipe.shear)
    turn = matrices(angle.cos(), -angle.sin(), angle.sin(), angle.cos())
    linear = turn @ matrices(stretch, shear, zero, 1 / stretch) * chance.between(recipe.shrink, 1, 1)
    move = torch.stack(chance.directions(), 1) * chance.between(offset, 1)
    grid = functional.affine_grid(torch.cat([linear, move.unsqueeze(2)], 2), [chance.count, 1, size, size], False)
    waves = torch.cos(torch.outer(torch.arange(size) + 0.5, torch.arange(4)) * math.pi / size)
    bent = grid + (waves @ (recipe.bend * chance.normal(2, 4, 4)) @ waves.T).permute(0, 2, 3, 1)
    chosen = ink[chance.below(len(ink)), labels].unsqueeze(1)
    placed = functional.grid_sample(chosen, bent, align_corners=False)
    blur = torch.ones(size, size).tril(1).triu(-1) / 3  # each row the mean of itself and its neighbours
    return torch.lerp(placed, blur @ placed @ blur, chance.between((0.0, 1.0), 1, 1, 1).expand_as(placed))


def matrices(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Return matrices ((a, b), (c, d)) of numbers of shape (n,): (n, 2, 2)."""
    return torch.stack([a, b, c, d], 1).view(-1, 2, 2)


def ramp(size: int, chance: Chance) -> torch.Tensor:
    """Return a value for each pixel that rises from about -1 to 1 in some direction: (count, 1, size, size)."""
    x, y = (part.view(-1, 1, 1, 1) for part in chance.directions())
    axis = torch.linspace(-1, 1, size)
    return x * axis + y * axis.unsqueeze(1)


def draw_lines(size: int, recipe: Recipe, chance: Chance) -> torch.Tensor:
    """Draw a line across some of the pictures. Returns the amount of ink, (count, 1, size, size)."""
    distance = (ramp(size, chance) - chance.between((-0.6, 0.6), 1, 1, 1)).abs()
    drawn = ((chance.between(recipe.line_width, 1, 1, 1) - distance) * size / 2 + 0.5).clamp(0, 1)
    return drawn * (chance.between((0.0, 1.0), 1, 1, 1) < recipe.lines)


def contrasting(background: torch.Tensor, recipe: Recipe, chance: Chance) -> torch.Tensor:
    """Return a colour that contrasts with the background: (count, 3, 1, 1)."""
    brightness = background.mean(1, keepdim=True)
    lighter = chance.between((0.0, 1.0), 1, 1, 1) < 1 - brightness
    contrast = chance.between(recipe.contrast, 1, 1, 1)
    return brightness + torch.where(lighter, contrast, -contrast) + chance.between(recipe.tint, 3, 1, 1)


class Chance:
    """Random numbers from a seed, one set per picture."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._generator = torch.Generator().manual_seed(seed)

    def between(self, bounds: Range, *shape: int) -> torch.Tensor:
        """Uniform numbers in a range: (count, *shape)."""
        low, high = bounds
        return low + (high - low) * torch.rand(self.count, *shape, generator=self._generator)

    def normal(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers: (count, *shape)."""
        return torch.randn(self.count, *shape, generator=self._generator)

    def below(self, limit: int) -> torch.Tensor:
        """Integers from 0 to `limit` - 1: int64 (count,)."""
        return torch.randint(limit, (self.count,), generator=self._generator)

    def directions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Points on the unit circle: x and y, (count,) each."""
        angles = self.between((0.0, 2 * math.pi))
        return angles.cos(), angles.sin()
