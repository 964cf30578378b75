"""Which pictures a folder holds, of which class, and which of them are held out.

PATH/train/CLASS/… and PATH/val/CLASS/…, with pictures at any depth below their class; or PATH/CLASS/…, of which a tenth of
each class is held out.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import listed, printable
from slipway.train.placeholders import LARGEST, is_companion, require_content
from slipway.train.text.files import VALIDATION_SHARE

# What Pillow reads besides: JPEG's other names, and formats that torchvision does not list.
SUFFIXES = (
    *IMG_EXTENSIONS,
    *(".jfif", ".jpe", ".jif", ".pjpeg", ".pjp", ".gif", ".apng", ".avif", ".jp2", ".pnm", ".pbm", ".tga"),
)
TRAIN = ("train", "training")
JUDGE = ("val", "valid", "validation", "dev", "eval", "test", "testing")  # the first that is there is used
BEATEN = 1000  # entries of a folder between two signs of life: a file server may take a millisecond for each
SHOWN = 8  # classes, and names of files, in a line
LAYOUT = "It has to hold train/CLASS/FILE and val/CLASS/FILE, or CLASS/FILE"


@dataclass(frozen=True)
class Files:
    """Files for training and for evaluation by class and name: (path, label)."""

    classes: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    evaluation: tuple[tuple[Path, int], ...]


@dataclass
class LeftOut:
    """What of a folder is not read, by the reason."""

    companions: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # no known suffix
    outside: list[str] = field(default_factory=list)  # in no class's folder
    parts: list[str] = field(default_factory=list)  # folders beside those for training and evaluation

    def lines(self) -> list[str]:
        """A phrase for each reason."""
        reasons = (
            (self.companions, "hidden or a system's own"),
            (self.dangling, "links that lead nowhere or in a circle"),
            (self.others, f"with a suffix that is not read: {suffixes(self.others)}"),
            (self.outside, "outside the folders of classes"),
            (self.parts, "beside the folders for training and evaluation"),
        )
        return [f"{len(names):,} {reason} ({listed(names, SHOWN)})" for names, reason in reasons if names]


def list_files(root: Path, beat: Callable[[], None] = lambda: None) -> tuple[Files, LeftOut]:
    """Return the pictures under `root`, and what else is there. `beat` is called now and then.

    Raises ConfigurationError where there are none of some class or kind, and for empty files and pointers to content.
    """
    left, folders = LeftOut(), subfolders(root)
    train, judge = find_parts(root, folders)
    note_others(root, "", left)
    if train is None:
        return divide(root, list_classes(root, folders, left, beat), left)
    left.parts += [name for name in folders if name not in (train, judge)]
    assert judge is not None
    for part in (train, judge):
        note_others(root, f"{part}/", left)
    trained = list_classes(root / train, subfolders(root / train), left, beat)
    judged = list_classes(root / judge, subfolders(root / judge), left, beat, allow_empty=True)
    if other := set(judged) - set(trained):
        raise ConfigurationError(f"{root / judge} has the class {min(other)}, and {root / train} has not.")
    require_classes(root, trained)
    if not any(judged.values()):
        raise ConfigurationError(f"{root} holds no pictures to evaluate on: no folder in {judge} has any. {LAYOUT}.")
    parts = (
        tuple((folder / name, label) for label, kind in enumerate(trained) for name in held.get(kind, ()))
        for folder, held in ((root / train, trained), (root / judge, judged))
    )
    return Files(tuple(map(printable, trained)), *parts), left


def find_parts(root: Path, folders: Sequence[str]) -> tuple[str | None, str | None]:
    """The folders for training and for evaluation; none where `root` holds the classes themselves.

    A class may be called train: pictures lie in it, and no classes that the folder for evaluation has, too. Raises
    ConfigurationError where only one of them is there, or where neither holds classes.
    """
    train, judge = (
        next((name for wanted in names for name in folders if name.lower() == wanted), None) for names in (TRAIN, JUDGE)
    )
    if train is None:
        return None, None
    inside = subfolders(root / train)
    if judge is not None and not set(inside).isdisjoint(subfolders(root / judge)):
        return train, judge
    if holds_pictures(root / train) or (not inside and judge is None):
        if all(name.lower() in (*TRAIN, *JUDGE) for name in folders):
            raise ConfigurationError(
                f"{root} holds no folders of classes: pictures are directly in {listed(folders, SHOWN)}. {LAYOUT}."
            )
        return None, None
    if judge is None:
        raise ConfigurationError(
            f"{root} has a folder {train} and none that is called val, for the evaluation. Where {train} is a "
            "class, put its pictures into it, not into folders below it."
        )
    return train, judge


def list_classes(
    root: Path, names: Sequence[str], left: LeftOut, beat: Callable[[], None], allow_empty: bool = False
) -> dict[str, list[str]]:
    """The pictures of each class, as sorted paths relative to `root`. Raises ConfigurationError for a class without any."""
    found: dict[str, list[str]] = {}
    for name in names:
        others = len(left.others)
        found[name] = sorted(walk(root, name, left, beat))
        if not found[name] and not allow_empty:
            held = suffixes(left.others[others:])
            raise ConfigurationError(
                f"{root / name} contains no pictures{f', only {held}' if held else ''}. Supported suffixes: "
                f"{' '.join(SUFFIXES)}. Convert the files, or remove the folder."
            )
    return found


def walk(
    root: Path, inside: str, left: LeftOut, beat: Callable[[], None], above: tuple[tuple[int, int], ...] = ()
) -> list[str]:
    """The pictures in a folder and below, as paths relative to `root`; links are followed, but not in circles."""
    found: list[str] = []
    folder = (root / inside).stat()
    above = (*above, (folder.st_dev, folder.st_ino))
    for number, entry in enumerate(scan(root / inside)):
        if number % BEATEN == 0:
            beat()
        name = f"{inside}/{entry.name}"
        if is_companion(entry.name):
            left.companions.append(name)
        elif (state := look_at(path := root / name)) is None or (state.st_dev, state.st_ino) in above:
            left.dangling.append(name)
        elif stat.S_ISDIR(state.st_mode):
            found += walk(root, name, left, beat, above)
        elif not entry.name.lower().endswith(SUFFIXES):
            left.others.append(name)
        else:
            require_picture(path, state.st_size)
            found.append(name)
    return found


def look_at(path: Path) -> os.stat_result | None:
    """What lies at a path; None for a link that leads nowhere or in a circle. Raises ConfigurationError for what is locked."""
    try:
        return path.stat()  # not DirEntry's own stat, which each of a million entries would keep
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None


def require_picture(path: Path, size: int) -> None:
    """Raise ConfigurationError for a file that is empty, or a pointer to its content."""
    if not size:
        raise ConfigurationError(f"{path} cannot be read as a picture (the file is empty). Remove or replace it.")
    if size <= LARGEST:
        require_content(path)


def divide(root: Path, found: Mapping[str, Sequence[str]], left: LeftOut) -> tuple[Files, LeftOut]:
    """Hold out a tenth of each class. Raises ConfigurationError where nothing is left for one of both."""
    require_classes(root, found)
    parts: tuple[list[tuple[Path, int]], list[tuple[Path, int]]] = ([], [])
    for label, names in enumerate(found.values()):
        aside = choose_held_out(names)
        for name in names:
            parts[name in aside].append((root / name, label))
    if not parts[1]:
        raise ConfigurationError(
            f"{root} holds no pictures to evaluate on: no class has two pictures, of which one is held out. {LAYOUT}."
        )
    return Files(tuple(map(printable, found)), tuple(parts[0]), tuple(parts[1])), left


def choose_held_out(names: Sequence[str]) -> frozenset[str]:
    """A tenth of a class's pictures, at least one of two, never the only one: those with the lowest hashes of their names.

    So a new picture changes the part of at most one other.
    """
    count = 0 if len(names) < 2 else max(1, int(len(names) * VALIDATION_SHARE + 0.5))
    return frozenset(sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())[:count])


def require_classes(root: Path, found: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigurationError where there are no classes, or a single one that seems to hold the classes."""
    if not found:
        raise ConfigurationError(
            f"{root} holds no pictures to train on. {LAYOUT}, with files like {', '.join(IMG_EXTENSIONS[:4])}."
        )
    only = next(iter(found))
    if len(found) == 1 and all(name.count("/") > 1 for name in found[only]):
        raise ConfigurationError(
            f"{root} holds a single folder, {only}, with folders in it. Did you mean folder:{root / only}?"
        )


def described(files: Files, left: LeftOut) -> str:
    """What was found in a line: each class with its pictures for training and for validation, and what was left out."""
    counts = [Counter(label for _, label in part) for part in (files.train, files.evaluation)]
    shown = [f"{name} {counts[0][at]:,} + {counts[1][at]:,}" for at, name in enumerate(files.classes[:SHOWN])]
    more = f" and {len(files.classes) - SHOWN:,} more" if len(files.classes) > SHOWN else ""
    text = (
        f"pictures: {len(files.train):,} for training + {len(files.evaluation):,} for validation, {len(files.classes):,} "
        f"class{'' if len(files.classes) == 1 else 'es'}: {', '.join(shown)}{more}"
    )
    for place, what in ((0, "training"), (1, "validation")):
        if none := [name for at, name in enumerate(files.classes) if not counts[place][at]]:
            text += f"; no picture for {what} in {len(none):,}: {listed(none, SHOWN)}"
    return text + (f"; left out: {', '.join(told)}" if (told := left.lines()) else "")


def suffixes(names: Sequence[str]) -> str:
    """How many names have which suffix: `2 .heic, 1 no suffix`."""
    counts = Counter(Path(name).suffix.lower() or "no suffix" for name in names)
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common(SHOWN))


def scan(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name. Raises ConfigurationError where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}.") from None


def subfolders(folder: Path) -> list[str]:
    """The folders in a folder, sorted, without those of systems."""
    return [entry.name for entry in scan(folder) if is_folder(entry) and not is_companion(entry.name)]


def note_others(root: Path, inside: str, left: LeftOut) -> None:
    """Note what lies beside the folders of classes, in `root` or a part of it, such as `train/`."""
    for entry in scan(root / inside):
        if is_companion(entry.name):
            left.companions.append(inside + entry.name)
        elif not is_folder(entry):
            left.outside.append(inside + entry.name)


def holds_pictures(folder: Path) -> bool:
    """Whether pictures lie in a folder itself."""
    return any(
        entry.name.lower().endswith(SUFFIXES) and not is_companion(entry.name) and not is_folder(entry)
        for entry in scan(folder)
    )


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or to where nobody may look
        return False
