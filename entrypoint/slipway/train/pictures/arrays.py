"""Small collections as arrays: on the disk with checksums, and on the device as one tensor."""

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

from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.task import Batch
from slipway.train.pictures.augmentation import Variation, cut_out, shifted_windows, vary
from slipway.train.pictures.collection import Pictures
from slipway.train.snapshots.tensor_files import write_file

MANIFEST = "manifest.json"
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Arrays:
    """Pictures of shape (n, size, size, 3), and their labels (n,)."""

    train_pictures: Bytes
    train_labels: Bytes
    evaluation_pictures: Bytes
    evaluation_labels: Bytes


NAMES = tuple(Arrays.__dataclass_fields__)


def write_arrays(folder: Path, arrays: Arrays, tick: Callable[[], None]) -> None:
    """Write each array as a .npy file, and a manifest with their checksums. Raises OSError."""
    files = {}
    for name in NAMES:
        array: Bytes = getattr(arrays, name)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        content: list[bytes | memoryview] = [header.getvalue(), np.ascontiguousarray(array).data]
        files[f"{name}.npy"] = write_file(folder / f"{name}.npy", content, lambda size: tick())
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")


def read_arrays(folder: Path) -> tuple[Arrays, str]:
    """What `write_arrays` wrote, and a checksum over all of it. Raises ConfigurationError where it is damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())["files"]
        arrays = Arrays(*(read_array(folder / f"{name}.npy", manifest[f"{name}.npy"]["sha256"]) for name in NAMES))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder} is damaged ({error}). Delete it, and it will be made again.") from None
    return arrays, hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_array(path: Path, checksum: str) -> Bytes:
    """A .npy file. Raises ValueError where it is another than was written."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
            raise ValueError(f"{path.name} has another checksum than the manifest")
        file.seek(0)
        array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    return array


def on_device(
    arrays: Arrays, variation: Variation, limits: tuple[int | None, int | None], device: torch.device, **about: Any
) -> Pictures:
    """The first so many (`limits`; None: all) of the pictures, on `device`, as fields of Pictures; `about` has the rest."""
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
