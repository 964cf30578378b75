"""Pictures in folders as versions before 0.1.0's release listed and divided them: runs that began so resume on the same files.

Pictures lie in PATH/CLASS itself, and those are held out whose names' hashes say so, whatever their class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.files import VALIDATION_SHARE, is_validation


@dataclass(frozen=True)
class Files:
    """Files for training and for evaluation by class and name: (path, label)."""

    classes: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    evaluation: tuple[tuple[Path, int], ...]


def list_by_name(root: Path, beat: Callable[[], None]) -> Files:
    """The pictures under `root`, as earlier versions read them. Raises ConfigurationError where there are none of some kind."""
    split = (root / "train").is_dir()
    if split and not (root / "val").is_dir():
        raise ConfigurationError(f"{root} has a folder train and none that is called val, for the evaluation.")
    classes = names_of_folders(root / "train" if split else root)
    if split and (other := set(names_of_folders(root / "val")) - set(classes)):
        raise ConfigurationError(f"{root / 'val'} has the class {min(other)}, and {root / 'train'} has not.")
    parts: dict[bool, list[tuple[Path, int]]] = {False: [], True: []}
    for folder in (root / "train", root / "val") if split else (root,):
        for label, name in enumerate(classes):
            beat()
            for file in names_of_pictures(folder / name):
                aside = folder.name == "val" if split else is_validation(f"{name}/{file}")
                parts[aside].append((folder / name / file, label))
    for aside, word in ((False, "train on"), (True, "evaluate on")):
        if not parts[aside]:
            share = "" if split else f"; a share of {VALIDATION_SHARE:.0%} is held out for that"
            raise ConfigurationError(
                f"{root} holds no pictures to {word}{share if aside else ''}. It has to hold train/CLASS/FILE and "
                f"val/CLASS/FILE, or CLASS/FILE, with files like {', '.join(IMG_EXTENSIONS[:4])}."
            )
    return Files(classes, tuple(parts[False]), tuple(parts[True]))


def names_of_folders(folder: Path) -> tuple[str, ...]:
    """The folders in a folder, sorted."""
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")))


def names_of_pictures(folder: Path) -> list[str]:
    """The pictures in a folder, sorted; none where there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.lower().endswith(IMG_EXTENSIONS))
