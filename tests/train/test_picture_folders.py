"""`folder:PATH`: which pictures are read, what is left out and said, and which are held out."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from slipway.protocol.mistake import ConfigurationError
from slipway.train.pictures.folder import centred, read_picture, without_ends
from slipway.train.pictures.listing import choose_held_out, described, list_files, look_at

pytestmark = pytest.mark.pull

APPLE_DOUBLE = bytes.fromhex("0005160700020000") + b"Mac OS X        " + bytes(200)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 5481\n"


def picture(seed: int = 0, size: tuple[int, int] = (12, 9), form: str = "png") -> bytes:
    """A small picture, in some form."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)).save(content, form)
    return content.getvalue()


def put(root: Path, *names: str | bytes, content: bytes | None = None) -> Path:
    """Files below `root`, each a picture unless `content` is given."""
    for number, name in enumerate(names):
        path = Path(os.fsdecode(os.fsencode(root) + b"/" + os.fsencode(name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number) if content is None else content)
    return root


def some(folder: str, count: int, suffix: str = "png") -> list[str]:
    """Names of so many pictures in a folder."""
    return [f"{folder}/{number:03d}.{suffix}" for number in range(count)]


def found(root: Path) -> tuple[dict[str, int], str]:
    """How many pictures of each class there are, and the line about them."""
    files, left = list_files(root)
    labels = [label for _, label in (*files.train, *files.evaluation)]
    line = described(files, left)
    line.encode()  # it can be printed
    return {name: labels.count(at) for at, name in enumerate(files.classes)}, line


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of ten."""
    return put(tmp_path / "data", *some("red", 10), *some("blue", 10))


def test_the_line_says_each_class_with_its_counts(data: Path) -> None:
    assert found(data) == (
        {"blue": 10, "red": 10},
        "pictures: 18 for training + 2 for validation, 2 classes: blue 9 + 1, red 9 + 1",
    )


@pytest.mark.parametrize(
    ("names", "content", "counts", "told"),
    [
        ([b"red/caf\xe9.png"], None, {"blue": 10, "red": 11}, "red 10 + 1"),
        ([b"caf\xe9/a.png", b"caf\xe9/b.png"], None, {"blue": 10, "caf\\xe9": 2, "red": 10}, r"caf\xe9 1 + 1"),
        (["dark red/a b.png", "dark red/c.png"], None, {"blue": 10, "dark red": 2, "red": 10}, "dark red 1 + 1"),
        (["красный/я.png", "красный/ы.png"], None, {"blue": 10, "red": 10, "красный": 2}, "красный 1 + 1"),
        (["red/._000.png", "__MACOSX/red/._1.png"], APPLE_DOUBLE, {"blue": 10, "red": 10}, "2 hidden or a system's own"),
        (["red/Thumbs.db", "red/desktop.ini", ".DS_Store"], b"x", {"blue": 10, "red": 10}, "3 hidden or a system's own"),
        ([".git/x.png", "@eaDir/y.png", "red/.cache/z.png"], None, {"blue": 10, "red": 10}, "(.git, @eaDir, red/.cache)"),
        (some("red/session2", 60), None, {"blue": 10, "red": 70}, "red 63 + 7"),
        (some("red/2026/day1/raw", 5), None, {"blue": 10, "red": 15}, "red 13 + 2"),
        (["red/a.jfif", "red/b.JPE", "red/c.Gif"], None, {"blue": 10, "red": 13}, "red 12 + 1"),
        (["red/a.heic", "red/b.HEIC", "red/notes.txt", "red/x"], b"?", {"blue": 10, "red": 10},
         "4 with a suffix that is not read: 2 .heic, 1 .txt, 1 no suffix"),
        (["readme.md", "cover.png"], b"?", {"blue": 10, "red": 10}, "2 outside the folders of classes (cover.png, readme.md)"),
        (["train/1.png", "train/2.png"], None, {"blue": 10, "red": 10, "train": 2}, "train 1 + 1"),
        (["train/1.png", "train/2.png", "test/1.png", "test/2.png"], None, {"blue": 10, "red": 10, "test": 2, "train": 2}, "test"),
        (["val/1.png", "val/2.png"], None, {"blue": 10, "red": 10, "val": 2}, "val 1 + 1"),
        (["one/1.png"], None, {"blue": 10, "one": 1, "red": 10}, "no picture for validation in 1: one"),
        (["train/1.png", "train/red/2.png", "val/3.png"], None, {"blue": 10, "red": 10, "train": 2, "val": 1}, "train 1 + 1"),
    ],
)  # fmt: skip
def test_what_is_beside_ordinary_pictures_is_read_or_said(
    data: Path, names: list[str | bytes], content: bytes | None, counts: dict[str, int], told: str
) -> None:
    put(data, *names, content=content)
    classes, line = found(data)
    assert classes == counts
    assert told in line


@pytest.mark.parametrize(
    ("names", "content", "told"),
    [
        (some("green", 3, "heic"), b"?", "green contains no pictures, only 3 .heic"),
        (["green/.hidden.png"], None, r"green contains no pictures\."),
        (["red/empty.png"], b"", r"red/empty.png cannot be read as a picture \(the file is empty\)"),
        (["red/deep/p.JPG"], POINTER, "red/deep/p.JPG is a pointer of Git LFS .* git lfs pull"),
        ([b"red/caf\xe9.png"], b"", r"red/caf\\xe9.png cannot be read as a picture"),
        (["train/red/1.png"], None, "a folder train and none that is called val"),
    ],
)
def test_what_cannot_be_read_is_named_before_training(
    data: Path, names: list[str | bytes], content: bytes | None, told: str
) -> None:
    put(data, *names, content=content)
    with pytest.raises(ConfigurationError, match=told) as error:
        list_files(data)
    str(error.value).encode()


def test_links_are_followed_but_not_in_circles_and_what_is_left_out_is_said(data: Path) -> None:
    (data / "red" / "again").symlink_to(data / "red")
    (data / "red" / "gone.png").symlink_to(data / "none.png")
    (data / "red" / "link.png").symlink_to(data / "blue" / "000.png")
    put(data.parent / "elsewhere", *some("", 4))
    (data / "green").symlink_to(data.parent / "elsewhere")
    classes, line = found(data)
    assert classes == {"blue": 10, "green": 4, "red": 11}
    assert "2 links that lead nowhere or in a circle (red/again, red/gone.png)" in line


@pytest.mark.parametrize("train", ["train", "Train", "training"])
@pytest.mark.parametrize("judge", ["val", "valid", "Validation", "dev", "test"])
def test_parts_are_known_by_their_usual_names(tmp_path: Path, train: str, judge: str) -> None:
    put(
        tmp_path,
        *some(f"{train}/red/images", 3),
        *some(f"{train}/blue", 4),
        *some(f"{judge}/red", 1),
        *some(f"{judge}/blue", 2),
    )
    assert found(tmp_path)[1].endswith("7 for training + 3 for validation, 2 classes: blue 4 + 2, red 3 + 1")


def test_of_validation_and_test_the_first_is_used_and_the_other_said(tmp_path: Path) -> None:
    put(tmp_path, *some("train/red", 3), *some("train/blue", 3), *some("val/red", 1), *some("test/red", 9))
    line = found(tmp_path)[1]
    assert "blue 3 + 0, red 3 + 1; no picture for validation in 1: blue" in line
    assert "1 beside the folders for training and evaluation (test)" in line


def test_what_lies_beside_the_classes_of_a_part_is_said_and_makes_no_class_of_the_part(tmp_path: Path) -> None:
    put(tmp_path, *some("train/red", 3), *some("train/blue", 3), *some("val/red", 1), *some("val/blue", 1))
    put(tmp_path, "train/overview.png", "val/labels.csv", "val/.DS_Store")
    counts, line = found(tmp_path)
    assert counts == {"blue": 4, "red": 4}
    assert "1 hidden or a system's own (val/.DS_Store)" in line
    assert "2 outside the folders of classes (train/overview.png, val/labels.csv)" in line


@pytest.mark.parametrize("judge", ["val", "test"])
def test_pictures_in_train_and_val_without_classes_are_no_two_classes(tmp_path: Path, judge: str) -> None:
    put(tmp_path, *some("train", 3), *some(judge, 3))
    with pytest.raises(ConfigurationError, match=r"holds no folders of classes: pictures are directly in \w+, \w+"):
        list_files(tmp_path)


def test_a_link_in_a_circle_beside_the_classes_is_passed_over(data: Path) -> None:
    (data / "circle").symlink_to("circle")
    assert found(data)[0] == {"blue": 10, "red": 10}


def test_what_is_there_and_cannot_be_looked_at_is_not_taken_for_a_dangling_link(tmp_path: Path) -> None:
    assert look_at(tmp_path / "none") is None
    with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
        look_at(tmp_path / ("x" * 300))


def test_a_class_of_many_pictures_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.train.pictures.listing.BEATEN", 3)
    beats: list[None] = []
    list_files(put(tmp_path, *some("red", 9)), lambda: beats.append(None))
    assert len(beats) == 3


def test_a_folder_around_the_folder_is_recognised(tmp_path: Path) -> None:
    put(tmp_path, *some("data/red", 3), *some("data/blue", 3))
    with pytest.raises(ConfigurationError, match=rf"Did you mean folder:{re.escape(str(tmp_path))}/data\?"):
        list_files(tmp_path)


# The split


@pytest.mark.parametrize(
    ("count", "held"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (10, 1), (14, 1), (15, 2), (40, 4), (1300, 130)]
)
def test_a_tenth_of_each_class_is_held_out_at_least_one_of_two(count: int, held: int) -> None:
    assert len(choose_held_out([f"red/{number}.png" for number in range(count)])) == held


def test_a_new_picture_moves_at_most_one_other() -> None:
    names = [f"red/{number}.png" for number in range(200)]
    for count in range(1, 200):
        before, after = choose_held_out(names[:count]), choose_held_out(names[: count + 1])
        assert len((before ^ after) - {names[count]}) <= 1


def test_every_class_of_few_pictures_is_trained_on_and_judged(tmp_path: Path) -> None:
    put(tmp_path, *(name for number in range(12) for name in some(f"species{number:02d}", 4)))
    files, _ = list_files(tmp_path)
    for part, count in ((files.train, 3), (files.evaluation, 1)):
        assert [label for _, label in part] == [label for label in range(12) for _ in range(count)]


# What is in the files


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff"])
def test_a_picture_is_read_as_viewers_show_it(tmp_path: Path, orientation: int, form: str) -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :16] = (255, 0, 0)  # red at the top left, blue at the bottom right
    pixels[8:, 16:] = (0, 0, 255)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose, which makes the stored pixels
    stored, exif = Image.fromarray(pixels), Image.Exif()
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif[ExifTags.Base.Orientation] = orientation
    more = {"quality": 95} if form == "jpeg" else {"lossless": True} if form == "webp" else {}
    stored.save(tmp_path / f"p.{form}", exif=exif, **more)
    seen = read_picture(tmp_path / f"p.{form}").numpy().transpose(1, 2, 0).astype(int)
    assert seen.shape == pixels.shape
    assert np.abs(seen[2:6, 2:14] - pixels[2:6, 2:14]).max() < 20
    assert np.abs(seen[10:14, 18:30] - pixels[10:14, 18:30]).max() < 20


@pytest.mark.parametrize(
    ("mode", "form"), [("L", "tiff"), ("I;16", "tiff"), ("I;16", "png"), ("CMYK", "tiff"), ("P", "tiff")]
)
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_picture_of_any_mode_is_turned(tmp_path: Path, mode: str, form: str, orientation: int) -> None:
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:8, :16] = 255  # white at the top left
    turn = {1: 0, 3: 2, 6: 1, 8: 3}[orientation]  # quarters of a circle, against the clock, to make the stored pixels
    stored, exif = np.ascontiguousarray(np.rot90(pixels, turn)), Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image = Image.fromarray(stored.astype(np.uint16) << 8 if mode == "I;16" else stored)
    (image if mode == "I;16" else image.convert("RGB").convert(mode)).save(tmp_path / f"p.{form}", exif=exif)
    assert (read_picture(tmp_path / f"p.{form}").numpy() > 128).tolist() == [(pixels > 128).tolist()] * 3


def test_metadata_that_are_damaged_or_say_nothing_useful_change_nothing(tmp_path: Path) -> None:
    plain = Image.fromarray(np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3))
    for number, exif in enumerate((b"", b"Exif\0\0II*\0", b"Exif\0\0garbage", b"Exif\0\0MM\0*\xff\xff\xff\xff")):
        plain.save(tmp_path / f"{number}.png", exif=exif)
    zero = Image.Exif()
    zero[ExifTags.Base.Orientation] = 0
    plain.save(tmp_path / "zero.png", exif=zero)
    for path in tmp_path.iterdir():
        assert torch.equal(read_picture(path).permute(1, 2, 0), torch.from_numpy(np.asarray(plain).copy())), path.name


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 400), (2, 41)])
def test_a_strip_is_cut_before_it_is_scaled(tmp_path: Path, size: tuple[int, int]) -> None:
    picture = torch.zeros(3, *size, dtype=torch.uint8)
    cut = without_ends(picture)
    assert max(cut.shape[1:]) <= 20 * min(size)
    Image.fromarray(np.full((*size, 3), 128, np.uint8)).save(tmp_path / "strip.png")
    assert (centred(tmp_path / "strip.png", 32) == 128).all()


@pytest.mark.parametrize("size", [(20, 40), (1, 1), (1, 20), (40, 2), (300, 17)])
def test_an_ordinary_picture_is_not_touched(size: tuple[int, int]) -> None:
    picture = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    assert without_ends(picture) is picture


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (picture()[:-60], "cannot be read as a picture"),
        (b"GIF89a", "cannot be read as a picture"),
        (POINTER, "is a pointer of Git LFS"),
        (b"/annex/objects/SHA256E-s31390--f50d7ac4.png\n", "is a pointer of git-annex"),
    ],
)
def test_a_damaged_picture_is_named_whatever_bytes_are_in_its_name(tmp_path: Path, content: bytes, told: str) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told) as error:
        read_picture(path)
    assert r"caf\xe9.png" in str(error.value)
    str(error.value).encode()


def test_a_picture_that_may_not_be_read_is_not_to_be_removed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigurationError, match=r"000.png cannot be read: Permission denied\.$"):
        read_picture(data / "red" / "000.png")
