"""How pictures are varied for training, whole batches at once.

All chance is in the keys, one random int64 for each picture, of which every decision takes bits of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FIELD = 12  # bits of a key for each decision


@dataclass(frozen=True)
class Variation:
    """How pictures are varied for training."""

    shift: int  # pixels up to which pictures are moved
    flip: bool  # whether half of them are mirrored
    cutout: int  # side of a square that is painted over, 0 for none


def draw_number(keys: torch.Tensor, field: int, choices: int) -> torch.Tensor:
    """A number from 0 to `choices` - 1 for each key; `field` (0 … 4) tells decisions about the same picture apart."""
    share: torch.Tensor = keys >> (FIELD * field) & (2**FIELD - 1)
    return share * choices >> FIELD


def shifted_windows(pictures: torch.Tensor, shift: int) -> torch.Tensor:
    """All positions of uint8 pictures (n, size, size, 3) that are moved by up to `shift` pixels, without copying them each.

    Shape (n, 2 shift + 1, 2 shift + 1, size, size, 3); what comes in at the border is black.
    """
    count, size, _, _ = pictures.shape
    wide = size + 2 * shift
    padded = pictures.new_zeros(count, wide, wide, 3)
    padded[:, shift : shift + size, shift : shift + size] = pictures
    return padded.unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3)


def vary(positions: torch.Tensor, indices: torch.Tensor, keys: torch.Tensor, how: Variation) -> torch.Tensor:
    """The pictures `indices` of `shifted_windows`, moved and mirrored as their keys decide: uint8 (n, size, size, 3)."""
    span = 2 * how.shift + 1
    moved = positions[indices, draw_number(keys, 0, span), draw_number(keys, 1, span)]
    if how.flip:
        moved = torch.stack([moved, moved.flip(2)])[
            draw_number(keys, 2, 2), torch.arange(len(moved), device=moved.device)
        ]
    return moved


def cut_out(pictures: torch.Tensor, keys: torch.Tensor, side: int, colour: torch.Tensor) -> torch.Tensor:
    """Pictures (n, size, size, 3) with a square each painted over, anywhere, partly outside as well.

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout" (2017).
    """
    if not side:
        return pictures
    across = torch.arange(pictures.shape[1], device=pictures.device)
    # From the square's first row or column on, which may lie outside.
    offsets = [across - draw_number(keys, field, len(across)).unsqueeze(1) + side // 2 for field in (3, 4)]
    rows, columns = ((offset >= 0) & (offset < side) for offset in offsets)
    return torch.where((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(3), colour, pictures)
