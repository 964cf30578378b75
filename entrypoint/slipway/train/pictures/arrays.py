"""Collections of labelled pictures: what each offers, how pictures are augmented, and small ones held as arrays.

Arrays are on disk with checksums, and on the device as one tensor; whole batches are augmented at once.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipway.protocol.durable import write_file
from slipway.protocol.mistake import ConfigurationError
from slipway.train.task import Batch

Colour = tuple[float, float, float]  # red, green, blue; 0 … 1

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pictures:
    """Pictures for training and for evaluation. A batch is (pictures, labels): uint8 (n, size, size, 3), and int64 (n,)."""

    classes: tuple[str, ...]  # names, in the order of the labels
    size: int  # pixels
    mean: Colour
    deviation: Colour  # standard deviation
    count: int  # for training
    train: Callable[[torch.Tensor, torch.Tensor], Batch]  # indices and keys, see Task
    judged: int  # for evaluation
    evaluation: Callable[[torch.Tensor], Batch]
    identity: str  # differs from that of any other pictures
    on_host: bool = False  # see Task


class Normaliser:
    """Normalises pictures for the models: each channel has mean 0 and standard deviation 1 over the collection."""

    def __init__(self, mean: Colour, deviation: Colour, size: int, device: torch.device) -> None:
        """For pictures of `size` pixels on `device`."""
        # For a row of pixels, not for one: broadcasting three numbers takes five times as long.
        self._mean, self._factor = (
            torch.tensor(colour).repeat(size).to(device)
            for colour in ([255 * part for part in mean], [1 / (255 * part) for part in deviation])
        )

    def __call__(self, batch: Batch) -> Batch:
        """Map (uint8 (n, size, size, 3), labels) to (float32 (n, 3, size, size) in channels_last, labels)."""
        pictures, labels = batch
        rows = pictures.flatten(2).float().sub_(self._mean).mul_(self._factor)
        return rows.view(pictures.shape).permute(0, 3, 1, 2), labels


@dataclass(frozen=True)
class Variation:
    """How pictures are augmented for training."""

    shift: int  # pixels up to which pictures are moved
    flip: bool  # whether half of them are mirrored
    cutout: int  # side of a square that is painted over; 0: none


FIELD = 12  # bits of a key per random decision


def vary(positions: torch.Tensor, indices: torch.Tensor, keys: torch.Tensor, how: Variation) -> torch.Tensor:
    """Return the pictures `indices` of `shifted_windows`, moved and mirrored as their keys decide: uint8 (n, size, size, 3)."""
    span = 2 * how.shift + 1
    moved = positions[indices, draw_number(keys, 0, span), draw_number(keys, 1, span)]
    if how.flip:
        moved = torch.stack([moved, moved.flip(2)])[
            draw_number(keys, 2, 2), torch.arange(len(moved), device=moved.device)
        ]
    return moved


def shifted_windows(pictures: torch.Tensor, shift: int) -> torch.Tensor:
    """Return views of uint8 pictures (n, size, size, 3) at all positions moved by up to `shift` pixels, without copies.

    Shape (n, 2 shift + 1, 2 shift + 1, size, size, 3); the border is black.
    """
    count, size, _, _ = pictures.shape
    wide = size + 2 * shift
    padded = pictures.new_zeros(count, wide, wide, 3)
    padded[:, shift : shift + size, shift : shift + size] = pictures
    return padded.unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3)


def cut_out(pictures: torch.Tensor, keys: torch.Tensor, side: int, colour: torch.Tensor) -> torch.Tensor:
    """Paint a square over each of the pictures (n, size, size, 3), anywhere, also partly outside.

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout" (2017).
    """
    if not side:
        return pictures
    across = torch.arange(pictures.shape[1], device=pictures.device)
    # From the square's first row or column, which may be outside.
    offsets = [across - draw_number(keys, field, len(across)).unsqueeze(1) + side // 2 for field in (3, 4)]
    rows, columns = ((offset >= 0) & (offset < side) for offset in offsets)
    return torch.where((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(3), colour, pictures)


def draw_number(keys: torch.Tensor, field: int, choices: int) -> torch.Tensor:
    """Return a number from 0 to `choices` - 1 for each key; `field` (0 … 4) distinguishes decisions about the same picture."""
    share: torch.Tensor = keys >> (FIELD * field) & (2**FIELD - 1)
    return share * choices >> FIELD


@dataclass(frozen=True)
class Arrays:
    """Pictures of shape (n, size, size, 3), and their labels (n,)."""

    train_pictures: Bytes
    train_labels: Bytes
    evaluation_pictures: Bytes
    evaluation_labels: Bytes


NAMES = tuple(Arrays.__dataclass_fields__)


def on_device(
    arrays: Arrays, variation: Variation, limits: tuple[int | None, int | None], device: torch.device, **about: Any
) -> Pictures:
    """Return the first `limits` (None: all) of the pictures, held on `device`; `about` has the other fields of Pictures."""
    train, evaluation = limits
    positions = shifted_windows(torch.from_numpy(arrays.train_pictures[:train]).to(device), variation.shift)
    judged = torch.from_numpy(arrays.evaluation_pictures[:evaluation]).to(device)
    train_labels, judged_labels = (
        torch.from_numpy(labels.astype(np.int64)).to(device)
        for labels in (arrays.train_labels[:train], arrays.evaluation_labels[:evaluation])
    )
    grey = torch.tensor([255 * part for part in about["mean"]], device=device).to(torch.uint8)

    def take(indices: torch.Tensor, keys: torch.Tensor) -> Batch:
        pictures = vary(positions, indices, keys, variation)
        return cut_out(pictures, keys, variation.cutout, grey), train_labels[indices]

    return Pictures(
        size=judged.shape[1],
        count=len(train_labels),
        train=take,
        judged=len(judged_labels),
        evaluation=lambda indices: (judged[indices], judged_labels[indices]),
        **about,
    )


MANIFEST = "manifest.json"


def write_arrays(folder: Path, arrays: Arrays, tick: Callable[[], None]) -> None:
    """Write each array as a .npy file, and a manifest with their checksums. Raises OSError."""
    files = {}
    for name in NAMES:
        array: Bytes = getattr(arrays, name)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        content: list[bytes | memoryview] = [header.getvalue(), np.ascontiguousarray(array).data]
        files[f"{name}.npy"] = write_file(folder / f"{name}.npy", content, lambda size: tick())._asdict()
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")


def read_arrays(folder: Path) -> tuple[Arrays, str]:
    """Return what `write_arrays` wrote, and a checksum over all of it. Raises ConfigurationError if it is damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())["files"]
        arrays = Arrays(*(read_array(folder / f"{name}.npy", manifest[f"{name}.npy"]["sha256"]) for name in NAMES))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder} is damaged ({error}). Delete it, and it will be made again.") from None
    return arrays, hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_array(path: Path, checksum: str) -> Bytes:
    """Read a .npy file. Raises ValueError if it is not the one that was written."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
            raise ValueError(f"{path.name} has another checksum than the manifest")
        file.seek(0)
        array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    return array
