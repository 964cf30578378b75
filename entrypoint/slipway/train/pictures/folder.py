"""`folder:PATH`: pictures in files of any format, one folder per class, as in torchvision's ImageFolder.

listing.py decides which files are read. The threads that prepare batches decode them as RGB and augment them as their keys
say.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import InterpolationMode, functional

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.phases import Phase
from slipway.protocol.printable import counted
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
UPPER = 8  # bits by which a value of 16 bits is shifted if all of them are used
SIXTEEN = (".png", ".apng", ".tif", ".tiff", ".pgm", ".pnm", ".jp2")  # files that may have 16 bits for each value
LOOKED_AT, STRETCH = 10_000, 64  # of them, at most, for their largest value; so many between two signs of life
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
    shift = find_shift((*train, *evaluation), threads, context)
    reader = Reader(train, evaluation, size, variation, threads, context.device, shift)
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
        identity=f"folder of {len(train)} + {len(evaluation)} pictures, names {names.hexdigest()[:16]}, {size} pixels"
        + (f", shifted by {shift}" if shift != UPPER else ""),
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
    shift: int  # see `find_shift`

    def take(self, indices: torch.Tensor, keys: torch.Tensor) -> Batch:
        """Return a training batch, decoded in this thread: the loader has its own threads."""
        chosen = [self.train[index] for index in indices.tolist()]
        pictures = self.stack(
            [
                varied(path, self.size, key, self.variation.flip, self.shift)
                for (path, _), key in zip(chosen, keys.tolist(), strict=True)
            ]
        )
        grey = torch.tensor([255 * part for part in MEAN]).to(torch.uint8)
        return self.send(cut_out(pictures, keys, self.variation.cutout, grey), chosen)

    def judge(self, indices: torch.Tensor) -> Batch:
        """Return an evaluation batch, decoded by threads that end with the call, so nothing has to be closed."""
        chosen = [self.evaluation[index] for index in indices.tolist()]
        with ThreadPoolExecutor(max(1, self.threads)) as pool:
            pictures = list(pool.map(lambda file: centred(file[0], self.size, self.shift), chosen))
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


def varied(path: Path, size: int, key: int, flip: bool, shift: int) -> torch.Tensor:
    """Return a picture for training: a part of it, scaled, and mirrored half of the time, as `key` decides."""
    picture, chance = read_picture(path, shift), random.Random(key)
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


def centred(path: Path, size: int, shift: int = UPPER) -> torch.Tensor:
    """Return a picture for evaluation: scaled, and cut from the middle."""
    scaled = functional.resize(
        without_ends(read_picture(path, shift)), [round(size * MARGIN)], InterpolationMode.BILINEAR, antialias=True
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


def find_shift(files: Sequence[tuple[Path, int]], threads: int, context: Context) -> int:
    """Return by how many bits pictures with 16 bits for each value are shifted right: one number for all of them.

    It is the smallest with which the largest value becomes 255 or less: cameras and scanners often use 12 of the bits. It is
    said if there are such pictures. Looks at LOOKED_AT of the files at most. By every rank.
    """
    able = [file for file in files if file[0].suffix.lower() in SIXTEEN]
    chosen = spread_evenly(able, LOOKED_AT)
    own = [path for path, _ in chosen[context.place.rank :: context.place.world_size]]
    counts = [0] * 18  # pictures of 8 bits; then those of 16, by the number of bits in their largest value
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start in range(0, len(own), STRETCH):
            for place in pool.map(count_bits, own[start : start + STRETCH]):
                counts[place] += 1
            context.beat(Phase.PREPARE)
            if counts[-1]:  # no value is larger
                break
    used = [bits for bits, count in enumerate(context.total(*counts)[1:]) if count]
    if not used:
        return UPPER
    shift = max(0, used[-1] - 8)
    rest = f"; {len(chosen):,} of {len(able):,} files were read for this, and larger values become white"
    context.say(
        f"16-bit pictures: values up to {2 ** used[-1] - 1:,} ({counted(used[-1], 'bit')}), so all are shifted right by "
        f"{counted(shift, 'bit')}{rest if shift < UPPER and len(chosen) < len(able) else ''}"
    )
    return shift


def count_bits(path: Path) -> int:
    """Return 1 + the number of bits in the largest value of a picture with 16 bits; 0 for others, and if it cannot be read."""
    try:
        with opened(path) as (image, file):
            values = sixteen_bits(image, file)
    except ConfigurationError:  # raised again when the picture is used
        return 0
    return 0 if values is None else 1 + int(values.max()).bit_length()


def read_picture(path: Path, shift: int = UPPER) -> torch.Tensor:
    """Return a picture as uint8 (3, height, width); `shift` as of `find_shift`. Raises ConfigurationError if it is damaged."""
    with opened(path) as (image, file):
        values = sixteen_bits(image, file)
        shown = upright(image) if values is None else Image.fromarray(np.minimum(values >> shift, 255).astype(np.uint8))
        picture: torch.Tensor = functional.pil_to_tensor(in_colour(shown))
    return picture


@contextmanager
def opened(path: Path) -> Iterator[tuple[ImageFile.ImageFile, BinaryIO]]:
    """A picture and its file. Raises ConfigurationError if it cannot be opened, or not be read within the block."""
    try:
        # Given a path, Pillow maps an uncompressed TIFF into memory and mixes up the rows if EXIF rotates it by 90 degrees.
        with path.open("rb") as file, Image.open(file) as image:
            yield image, file
    except PermissionError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except (OSError, ValueError, RuntimeError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else error
        told = explain_pointer(path) or f"{path} cannot be read as a picture ({reason}). Remove or replace it."
        raise ConfigurationError(told) from None


def sixteen_bits(image: ImageFile.ImageFile, file: BinaryIO) -> npt.NDArray[np.uint16] | None:
    """Return the values of an upright picture with 16 bits for each, (height, width) or (height, width, 3); None of others."""
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        return np.asarray(upright(image)).astype(np.uint16)
    if image.mode == "CMYK" or not re.search(";16[BLN]", str([tile.args for tile in image.tile])):
        return None
    if image.format != "PNG":  # Pillow reads the upper half of each value
        return np.asarray(upright(image).convert("RGB")).astype(np.uint16) << np.uint16(8)
    image.load()  # which says what is wrong with a damaged file
    file.seek(0)
    content = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    values: torch.Tensor = decode_image(content, ImageReadMode.RGB, apply_exif_orientation=True)
    return values.permute(1, 2, 0).numpy()


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
    if image.mode in ("I", "F"):
        raise ValueError("32 bits for each pixel, for which the white level is unknown")
    # Pillow warns about a palette with transparency unless it is converted through RGBA.
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
