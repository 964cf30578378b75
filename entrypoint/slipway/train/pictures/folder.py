"""`folder:PATH`: pictures in files of any format, one folder per class, as in torchvision's ImageFolder.

listing.py decides which files are read. The threads that prepare batches decode them as RGB and augment them as their keys
say.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torchvision.transforms.v2 import InterpolationMode, functional

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.train.pictures.arrays import Pictures, Variation, cut_out
from slipway.train.pictures.listing import described, list_files
from slipway.train.placeholders import explain_pointer
from slipway.train.task import Batch
from slipway.train.worker.context import Context

# Of ImageNet's training pictures, as in torchvision's reference scripts.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of the part that is cut out for training (torchvision's RandomResizedCrop)
MARGIN = 256 / 224  # for evaluation, how much longer the scaled shorter side is than the part cut from the middle
LONGEST = 20  # times the shorter side: a longer picture is cut before it is scaled
Box = tuple[int, int, int, int]  # top, left, height, width


def open_folder(
    root: Path, size: int, variation: Variation, limits: tuple[int | None, int | None], threads: int, context: Context
) -> Pictures:
    """Return the pictures under `root`, scaled to `size`; at most `limits` (None: all) of them, evenly spread.

    Evaluation decodes with `threads` threads. Says what was found. Raises ConfigurationError.
    """
    files, left = list_files(root, lambda: context.beat(Phase.PREPARE))
    context.say(described(files, left))
    train, evaluation = (
        spread_evenly(part, limit) for part, limit in zip((files.train, files.evaluation), limits, strict=True)
    )
    reader = Reader(train, evaluation, size, variation, threads, context.device)
    names = hashlib.sha256(b"\0".join(os.fsencode(path.relative_to(root)) for path, _ in (*train, *evaluation)))
    return Pictures(
        classes=files.classes,
        size=size,
        mean=MEAN,
        deviation=DEVIATION,
        count=len(train),
        train=reader.take,
        judged=len(evaluation),
        evaluation=reader.judge,
        identity=f"folder of {len(train)} + {len(evaluation)} pictures, names {names.hexdigest()[:16]}, {size} pixels",
        on_host=True,
    )


@dataclass(frozen=True)
class Reader:
    """Makes batches from files: uint8 pictures (n, size, size, 3) and labels on `device`."""

    train: Sequence[tuple[Path, int]]
    evaluation: Sequence[tuple[Path, int]]
    size: int
    variation: Variation
    threads: int
    device: torch.device

    def take(self, indices: torch.Tensor, keys: torch.Tensor) -> Batch:
        """Return a training batch, decoded in this thread: the loader has its own threads."""
        chosen = [self.train[index] for index in indices.tolist()]
        pictures = self.stack(
            [
                varied(path, self.size, key, self.variation.flip)
                for (path, _), key in zip(chosen, keys.tolist(), strict=True)
            ]
        )
        grey = torch.tensor([255 * part for part in MEAN]).to(torch.uint8)
        return self.send(cut_out(pictures, keys, self.variation.cutout, grey), chosen)

    def judge(self, indices: torch.Tensor) -> Batch:
        """Return an evaluation batch, decoded by threads that end with the call, so nothing has to be closed."""
        chosen = [self.evaluation[index] for index in indices.tolist()]
        with ThreadPoolExecutor(max(1, self.threads)) as pool:
            pictures = list(pool.map(lambda file: centred(file[0], self.size), chosen))
        return self.send(self.stack(pictures), chosen)

    def stack(self, pictures: Sequence[torch.Tensor]) -> torch.Tensor:
        """Stack pictures (3, size, size) into a batch."""
        if not pictures:
            return torch.empty(0, self.size, self.size, 3, dtype=torch.uint8)
        return torch.stack([picture.permute(1, 2, 0) for picture in pictures])

    def send(self, pictures: torch.Tensor, chosen: Sequence[tuple[Path, int]]) -> Batch:
        """Move pictures and their labels to the device."""
        labels = torch.tensor([label for _, label in chosen], dtype=torch.int64)
        if self.device.type != "cuda":
            return pictures, labels
        return tuple(part.pin_memory().to(self.device, non_blocking=True) for part in (pictures, labels))


def spread_evenly(files: Sequence[tuple[Path, int]], limit: int | None) -> Sequence[tuple[Path, int]]:
    """Return at most `limit` of the files, evenly from all classes."""
    if limit is None or limit >= len(files):
        return files
    return [files[place * len(files) // limit] for place in range(limit)]


def varied(path: Path, size: int, key: int, flip: bool) -> torch.Tensor:
    """Return a picture for training: a part of it, scaled, and mirrored half of the time, as `key` decides."""
    picture, chance = read_picture(path), random.Random(key)
    box = choose_box(picture.shape[1], picture.shape[2], chance)
    cut: torch.Tensor = functional.resized_crop(picture, *box, [size, size], InterpolationMode.BILINEAR, antialias=True)
    return functional.horizontal_flip(cut) if flip and chance.random() < 0.5 else cut


def choose_box(height: int, width: int, chance: random.Random) -> Box:
    """Choose the part of a picture to use, as torchvision's RandomResizedCrop does, but from this picture's own generator."""
    for _ in range(10):
        area = height * width * chance.uniform(*AREA)
        ratio = math.exp(chance.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return chance.randint(0, height - high), chance.randint(0, width - wide), high, wide
    high, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return (height - high) // 2, (width - wide) // 2, high, wide


def centred(path: Path, size: int) -> torch.Tensor:
    """Return a picture for evaluation: scaled, and cut from the middle."""
    scaled = functional.resize(
        without_ends(read_picture(path)), [round(size * MARGIN)], InterpolationMode.BILINEAR, antialias=True
    )
    result: torch.Tensor = functional.center_crop(scaled, [size, size])
    return result


def without_ends(picture: torch.Tensor) -> torch.Tensor:
    """Return the middle of a strip, LONGEST times as long as it is wide; any other picture unchanged.

    Only the middle of a scaled picture is used, and scaling a strip one pixel wide first would take gigabytes.
    """
    height, width = picture.shape[1:]
    longest = LONGEST * min(height, width)
    if max(height, width) <= longest:
        return picture
    middle: torch.Tensor = functional.center_crop(picture, [min(height, longest), min(width, longest)])
    return middle


def read_picture(path: Path) -> torch.Tensor:
    """Return a picture as uint8 (3, height, width). Raises ConfigurationError if it cannot be read."""
    try:
        # Given a path, Pillow maps an uncompressed TIFF into memory and mixes up the rows if EXIF rotates it by 90 degrees.
        with path.open("rb") as file, Image.open(file) as image:
            picture: torch.Tensor = functional.pil_to_tensor(in_colour(upright(image)))
    except PermissionError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else error
        told = explain_pointer(path) or f"{path} cannot be read as a picture ({reason}). Remove or replace it."
        raise ConfigurationError(told) from None
    return picture


def upright(image: Image.Image) -> Image.Image:
    """Return the picture as viewers show it: cameras store the pixels unrotated and record the orientation in EXIF."""
    image.load()
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # Pillow may raise anything for damaged metadata; the pixels are intact
        return image
    return ImageOps.exif_transpose(image) if turned else image


def in_colour(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB, 8 bits per colour. Raises ValueError if the value of white is unknown."""
    if image.mode.startswith("I;16"):  # 16-bit grey: Pillow would clip everything above 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("32 bits for each pixel, for which the white level is unknown")
    # Pillow warns about a palette with transparency unless it is converted through RGBA.
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
