"""A grid of pictures that a model gets wrong, each with what it is and what the model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from slipway.train.loop.task import Batch
from slipway.train.pictures.collection import Pictures

LOOKED_AT = 2000  # pictures
BATCH = 250  # pictures
COLUMNS, ROWS = 8, 4
SIDE, LINE, GAP = 96, 13, 4  # pixels of a tile: its picture, a line of text, and what is around both


class Mistake(NamedTuple):
    """A picture, uint8 (size, size, 3), with its label and the one that the model prefers."""

    picture: torch.Tensor
    label: int
    guess: int


@torch.no_grad()
def find_mistakes(
    model: nn.Module, pictures: Pictures, normalise: Callable[[Batch], Batch], device: torch.device
) -> list[Mistake]:
    """As many mistakes as a grid holds, or fewer, among at most LOOKED_AT pictures, evenly spread."""
    count = min(pictures.judged, LOOKED_AT)
    places = torch.arange(count, device=device) * pictures.judged // count
    mistakes: list[Mistake] = []
    was_training = model.training
    model.eval()
    try:
        for indices in torch.split(places, BATCH):
            batch = pictures.evaluation(indices)
            guesses = model(normalise(batch)[0]).argmax(1)
            wrong = (guesses != batch[1]).nonzero().squeeze(1)
            found = zip(*(part[wrong].cpu() for part in (*batch, guesses)), strict=True)
            mistakes += [Mistake(picture, int(label), int(guess)) for picture, label, guess in found]
            if len(mistakes) >= COLUMNS * ROWS:
                break
    finally:
        model.train(was_training)
    return mistakes[: COLUMNS * ROWS]


def draw_grid(mistakes: Sequence[Mistake], classes: Sequence[str]) -> torch.Tensor:
    """The grid, uint8 (3, height, width); a light sheet with a tile for each mistake."""
    rows = max(1, -(-len(mistakes) // COLUMNS))
    wide, high = SIDE + GAP, SIDE + 2 * LINE + GAP
    sheet, font = Image.new("RGB", (COLUMNS * wide + GAP, rows * high + GAP), "white"), ImageFont.load_default(10)
    for number, (picture, label, guess) in enumerate(mistakes):
        left, top = GAP + number % COLUMNS * wide, GAP + number // COLUMNS * high
        tile = Image.new("RGB", (SIDE, SIDE + 2 * LINE), "white")
        tile.paste(Image.fromarray(picture.numpy()).resize((SIDE, SIDE), Image.Resampling.NEAREST))
        words = ImageDraw.Draw(tile)
        words.text((0, SIDE), f"is {classes[label]}", "black", font)
        words.text((0, SIDE + LINE), f"said {classes[guess]}", "#b00020", font)
        sheet.paste(tile, (left, top))
    return torch.from_numpy(np.asarray(sheet).copy()).permute(2, 0, 1)
