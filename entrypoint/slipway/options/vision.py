"""Options of `vision`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, COUNT_OR_ZERO, SHARE, Exportable, option
from slipway.options.dataset import nearest_path, seen_from
from slipway.options.kind import Kind
from slipway.options.numbers import Whole
from slipway.options.paths import NotLocalError, explain_address, require_local
from slipway.protocol.mistake import ConfigurationError, nearest

TORCHVISIONS = ("resnet18", "resnet50")  # models
GLYPHS, CIFAR10, FOLDER = "glyphs", "cifar10", "folder"


class PictureData(Kind[str]):
    """Labelled pictures: glyphs, cifar10 or folder:PATH."""

    name = "data"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As `--help` shows it."""
        return f"{GLYPHS}|{CIFAR10}|{FOLDER}:PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text. Fails for any other form, with what was probably meant."""
        text = str(value)
        scheme, _, path = text.partition(":")
        if text in (GLYPHS, CIFAR10) or (scheme == FOLDER and path):
            return text
        if not nearest(scheme, (FOLDER,)) and (why := explain_address(text)):
            raise NotLocalError(f"{text!r}: {why}. Type {GLYPHS}, {CIFAR10} or {FOLDER}:PATH.", ctx, param)
        meant = f"{FOLDER}:{text}" if Path(text).is_dir() else nearest(scheme, (GLYPHS, CIFAR10, FOLDER))
        meant = f"{FOLDER}:{path or 'PATH'}" if meant == FOLDER else meant
        hint = f" Did you mean {meant}?" if meant else ""
        raise click.BadParameter(
            f"{text!r} is not a data set: type {GLYPHS}, {CIFAR10} or {FOLDER}:PATH.{hint}", ctx, param
        )


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class VisionOptions(Exportable):
    """Train a convolutional network on labelled pictures."""

    workload: ClassVar[str] = "vision"
    example: ClassVar[str] = "--preset glyphs --epochs 1"
    # glyphs: 98 % within a minute on two CPU cores. cifar10: D. Page, "How to train your ResNet" (2018), part 4. imagenet:
    # He et al. (2016) with the warm-up of Goyal et al., "Accurate, Large Minibatch SGD" (2017).
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "glyphs": {
            "model": "small", "dataset": GLYPHS, "epochs": 4, "batch_size": 128, "lr": 0.4, "warmup": 300,
            "schedule": "linear", "weight_decay": 5e-4, "shift": 2, "cutout": 0, "image_size": 64, "workers": 0,
            "save_every": 500, "eval_every": 0,
        },
        "cifar10": {
            "model": "resnet9", "dataset": CIFAR10, "epochs": 24, "batch_size": 512, "lr": 0.4, "warmup": 490,
            "schedule": "linear", "weight_decay": 5e-4, "shift": 4, "cutout": 8, "image_size": 64, "workers": 0,
            "save_every": 500, "eval_every": 0,
        },
        "imagenet": {
            "model": "resnet50", "dataset": GLYPHS, "epochs": 90, "batch_size": 256, "lr": 0.1, "warmup": 25_000,
            "schedule": "cosine", "weight_decay": 1e-4, "shift": 0, "cutout": 0, "image_size": 224, "workers": 8,
            "save_every": 5000, "eval_every": 5000,
        },
    }  # fmt: skip

    preset: str = option(
        GLYPHS,
        click.Choice(list(presets)),
        "Model, data and a schedule for them; imagenet needs --dataset folder:PATH.",
    )
    model: str = option(
        "small",
        click.Choice(["small", "resnet9", "resnet18", "resnet50"]),
        "Network; the last two are torchvision's. For pictures of up to 64 pixels, they have a 3×3 first convolution and "
        "no first pooling.",
    )
    dataset: str = option(
        GLYPHS,
        PictureData(),
        "Pictures: glyphs are digits that Slipway draws, cifar10 is downloaded, a folder has PATH/train/CLASS/FILE and "
        "PATH/val/CLASS/FILE, or PATH/CLASS/FILE, of which a tenth is held out.",
    )
    image_size: int = option(64, Whole(min=8), "Pixels to which pictures in folders are scaled.")
    train_pictures: int | None = option(None, COUNT, "Train on only this many pictures.")
    eval_pictures: int | None = option(None, COUNT, "Evaluate on only this many pictures.")
    label_smoothing: float = option(0.1, SHARE, "Fraction of the target that is distributed over all classes.")
    momentum: float = option(0.9, SHARE, "Nesterov momentum of SGD.")
    shift: int = option(
        2, COUNT_OR_ZERO, "Largest shift of training pictures in pixels; pictures of a folder are cropped instead."
    )
    flip: bool | None = option(None, None, "Mirror half of the training pictures; on by default except for glyphs.")
    cutout: int = option(0, COUNT_OR_ZERO, "Side of a square that is masked in each training picture; 0 masks none.")

    @property
    def folder(self) -> Path | None:
        """The folder that holds the pictures, if one does."""
        scheme, _, path = self.dataset.partition(":")
        return Path(path) if scheme == FOLDER else None

    @property
    def flips(self) -> bool:
        """Whether pictures are mirrored: digits never look the same."""
        return self.dataset != GLYPHS if self.flip is None else self.flip

    def packages(self) -> Mapping[str, str]:
        """torchvision has the ResNets, the decoders for folders and the address of CIFAR-10."""
        if self.dataset != GLYPHS:
            return {"torchvision": f"--dataset {self.dataset}"}
        return {"torchvision": f"--model {self.model}"} if self.model in TORCHVISIONS else {}

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for a folder that is not there."""
        super().check()
        if self.folder is None and (self.preset == "imagenet" or "image_size" in self.given):
            name = f"--preset {self.preset}" if self.preset == "imagenet" else f"--image-size {self.image_size}"
            raise click.UsageError(f"{name} is for pictures in a folder; type --dataset folder:PATH with it.")
        if self.folder is not None and not self.folder.is_dir():
            path = self.dataset.removeprefix(f"{FOLDER}:")
            require_local(path, f"--dataset {self.dataset}")
            raise ConfigurationError(
                f"--dataset {self.dataset}: there is no {path}{seen_from(path)}.{nearest_path(path)}", missing=path
            )
