"""Picture files of any kind, as tensors of colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torchvision.transforms.v2 import functional

from slipway.protocol.mistake import ConfigurationError
from slipway.train.placeholders import explain_pointer


def read_picture(path: Path) -> torch.Tensor:
    """A picture as uint8 (3, height, width). Raises ConfigurationError where it cannot be read."""
    try:
        # By its path Pillow maps an uncompressed TIFF into memory, and mixes up the rows of one that EXIF turns by 90 degrees.
        with path.open("rb") as file, Image.open(file) as image:
            picture: torch.Tensor = functional.pil_to_tensor(in_colour(upright(image)))
    except PermissionError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "it is in no format that is known" if isinstance(error, UnidentifiedImageError) else error
        told = explain_pointer(path) or f"{path} is no picture that can be read ({reason}). Remove or replace it."
        raise ConfigurationError(told) from None
    return picture


def upright(image: Image.Image) -> Image.Image:
    """The picture as viewers show it: a camera notes in EXIF how it was held, and stores the pixels as they came."""
    image.load()
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # damaged metadata, of which Pillow raises anything, and the pixels are sound
        return image
    return ImageOps.exif_transpose(image) if turned else image


def in_colour(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB, 8 bits for each colour. Raises ValueError where it is not known which value is white."""
    if image.mode.startswith("I;16"):  # 16 bits of grey: Pillow would cut off all that is brighter than 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("32 bits for each pixel, of which nobody knows what is white")
    # Pillow warns of a palette with transparency, but for the way over RGBA.
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
