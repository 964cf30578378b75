"""Pictures: where they come from, and how they are varied."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import torchvision
from hub_server import HubServer
from huggingface_hub import constants
from PIL import Image
from pyarrow import parquet
from training_jobs import Run, worker_environment

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted
from slipway.train.loop.loader import Loader, Sampler
from slipway.train.models.cnn import build
from slipway.train.pictures import cifar10
from slipway.train.pictures.arrays import (
    Arrays,
    Normaliser,
    Pictures,
    Variation,
    cut_out,
    draw_number,
    on_device,
    read_arrays,
    shifted_windows,
    vary,
    write_arrays,
)
from slipway.train.pictures.folder import open_folder, read_picture
from slipway.train.pictures.glyphs import Recipe, distort, draw_glyphs
from slipway.train.pictures.listing import list_files
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import read_place

Start = Callable[..., Run]
Make = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
CPU = torch.device("cpu")
OPTIONS = ("--dataset", "cifar10", "--batch-size", 10, "--steps", 2, "--warmup", 0, "--lr", 0.01, "--precision", "fp32")


def some_pictures(count: int) -> Arrays:
    random = np.random.default_rng(0)  # the same whatever ran before
    shapes = ((count, 32, 32, 3), (count,), (count // 5, 32, 32, 3), (count // 5,))
    parts = [random.integers(0, 256 if len(shape) > 1 else 10, shape).astype(np.uint8) for shape in shapes]
    return Arrays(*parts)


def equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Arrays.__dataclass_fields__)


# Glyphs


def test_glyphs_depend_on_the_seed_alone() -> None:
    glyphs = draw_glyphs()
    pictures, labels = distort(glyphs, Recipe(), 32, 40, seed=1)
    again, _ = distort(glyphs, Recipe(), 32, 40, seed=1)
    other, _ = distort(glyphs, Recipe(), 32, 40, seed=2)
    assert (pictures.shape, pictures.dtype, labels.shape) == ((40, 32, 32, 3), torch.uint8, (40,))
    assert torch.equal(pictures, again)
    assert not torch.equal(pictures, other)
    assert set(labels.tolist()) <= set(range(10))


def test_without_distortions_a_glyph_is_what_its_label_says() -> None:
    plain, none = Recipe(), (0.0, 0.0)
    for name in ("tilt", "shear", "offset", "gradient", "tint", "noise"):
        object.__setattr__(plain, name, none)
    for name, value in {
        "shrink": (1.0, 1.0),
        "stretch": (1.0, 1.0),
        "beside": (9.0, 9.0),
        "bend": 0,
        "lines": 0,
    }.items():
        object.__setattr__(plain, name, value)
    glyphs = draw_glyphs()[:1]  # one weight
    pictures, labels = distort(glyphs, plain, 48, 60, seed=0)
    ink = (pictures.float() - pictures[:, :1, :1].float()).abs().mean(3).flatten(1)  # what differs from the corner
    drawn = glyphs[0].float().flatten(1)
    likeness = torch.nn.functional.normalize(ink) @ torch.nn.functional.normalize(drawn).T
    assert torch.equal(likeness.argmax(1), labels.long())


# Augmentation


def test_every_position_occurs_and_none_but_those() -> None:
    keys = torch.from_numpy(Sampler(5000, 0).keys(0, np.arange(5000)))
    for field in range(5):
        assert draw_number(keys, field, 7).unique(return_counts=True)[1].min() > 600
    first, second = draw_number(keys, 0, 7), draw_number(keys, 1, 7)
    assert len((first * 7 + second).unique()) == 49


def test_a_moved_picture_is_a_part_of_it_on_black() -> None:
    pictures = torch.from_numpy(some_pictures(4).train_pictures)
    moved = shifted_windows(pictures, 2)
    assert torch.equal(moved[:, 2, 2], pictures)
    assert torch.equal(moved[1, 0, 4][2:, :-2], pictures[1][:-2, 2:])  # down by two, left by two
    assert not moved[1, 0, 4][:2].any()
    keys = torch.tensor(
        [5 << 12 | 4095, 1 << 35]
    )  # of five positions: the last row, the first column; both middle, mirrored
    how = Variation(2, True, 0)
    result = vary(moved, torch.tensor([3, 1]), keys, how)
    assert torch.equal(result[0], moved[3, 4, 0])
    assert torch.equal(result[1], moved[1, 0, 0].flip(1))


def test_a_square_is_painted_over() -> None:
    pictures = torch.full((300, 16, 16, 3), 9, dtype=torch.uint8)
    keys = torch.from_numpy(Sampler(300, 0).keys(0, np.arange(300)))
    colour = torch.tensor([1, 2, 3], dtype=torch.uint8)
    painted = cut_out(pictures, keys, 6, colour) != 9
    counts = painted.any(3).sum((1, 2))
    assert (int(counts.min()), int(counts.max())) == (9, 36)  # in a corner, and inside
    assert torch.equal(cut_out(pictures, keys, 6, colour)[painted[..., 0]].unique(dim=0), colour.unsqueeze(0))
    assert cut_out(pictures, keys, 0, colour) is pictures


def test_channels_are_normalised_and_lie_last() -> None:
    pictures = torch.from_numpy(some_pictures(50).train_pictures)
    mean, deviation = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    result, _ = Normaliser(mean, deviation, 32, CPU)((pictures, torch.empty(0)))
    wanted = (pictures.permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(
        3, 1, 1
    )
    torch.testing.assert_close(result, wanted)
    assert result.is_contiguous(memory_format=torch.channels_last)


def global_batch(make: Make, count: int, processes: int) -> torch.Tensor:
    """The pictures of the third step, of all processes."""
    parts = []
    for rank in range(processes):
        loader = Loader(make, Sampler(count, 7), 12, 1, (rank, processes), CPU, 0)
        loader.start(24)
        parts += [batch[0] for batch in loader.step()]
    return torch.cat(parts)


def test_pictures_vary_alike_whatever_the_number_of_processes(tmp_path: Path) -> None:
    arrays = some_pictures(50)
    about = {"classes": tuple("0123456789"), "mean": (0.5,) * 3, "deviation": (0.25,) * 3, "identity": ""}
    small = on_device(arrays, Variation(4, True, 8), (None, None), CPU, **about)
    files = open_folder(
        picture_folder(tmp_path / "data"), 16, Variation(0, True, 4), (None, None), 0, context(tmp_path)
    )
    for pictures in (small, files):
        alone = global_batch(pictures.train, pictures.count, 1)
        for processes in (2, 3):
            assert torch.equal(global_batch(pictures.train, pictures.count, processes), alone)
        plain = pictures.train(torch.tensor([3, 3]), torch.tensor([1, 0x7ABCDEF012345678]))[0]
        assert not torch.equal(plain[0], plain[1])  # another key, another picture


# CIFAR-10


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slipway"


class Site:
    """The place where the archive lies; `content` None is a page that is missing."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.requests = content, list[str]()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append(self.path)
                self.send_response(404 if site.content is None else 200)
                self.send_header("Content-Length", str(len(site.content or b"")))
                self.end_headers()
                self.wfile.write(site.content or b"")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def binary_archive(arrays: Arrays) -> bytes:
    """An archive like the binary one, of fewer pictures: five files for training and one for evaluation."""
    content = io.BytesIO()
    train = zip(np.array_split(arrays.train_pictures, 5), np.array_split(arrays.train_labels, 5), strict=True)
    parts = [*train, (arrays.evaluation_pictures, arrays.evaluation_labels)]
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, (pictures, labels) in zip((*cifar10.TRAIN, *cifar10.EVALUATION), parts, strict=True):
            rows = np.concatenate([labels[:, None], pictures.transpose(0, 3, 1, 2).reshape(len(labels), -1)], 1)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.size
            archive.addfile(member, io.BytesIO(rows.tobytes()))
    return content.getvalue()


def parquet_file(pictures: np.ndarray, labels: np.ndarray) -> bytes:  # type: ignore[type-arg]
    cells = []
    for picture in pictures:
        png = io.BytesIO()
        Image.fromarray(picture).save(png, "png")
        cells.append({"bytes": png.getvalue(), "path": None})
    content = io.BytesIO()
    parquet.write_table(pyarrow.table({"img": cells, "label": labels.astype(np.int64)}), content)
    return content.getvalue()


def on_the_hub(hub: HubServer, arrays: Arrays) -> None:
    parts = {
        "train": (arrays.train_pictures, arrays.train_labels),
        "test": (arrays.evaluation_pictures, arrays.evaluation_labels),
    }
    files = {cifar10.PARQUET.format(part=part): parquet_file(*content) for part, content in parts.items()}
    hub.add(cifar10.REPO, files, kind="dataset")


@pytest.fixture
def arrays() -> Arrays:
    return some_pictures(50)


@pytest.fixture
def site(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The archive's place, with a right one."""
    site = Site(binary_archive(arrays))
    url = f"http://127.0.0.1:{site.server.server_address[1]}/data/cifar-10-python.tar.gz"
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", url)
    monkeypatch.setattr(cifar10, "MD5", hashlib.md5(site.content or b"").hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_cifar10_is_fetched_once_and_leaves_its_weights_under_its_name(
    train: Start, site: Site, arrays: Arrays, cache: Path
) -> None:
    run = train("vision", *OPTIONS)
    assert run.exit_code == 0
    assert equal(read_arrays(cache / "cifar10")[0], arrays)
    assert (
        torch.load(run.folder / "cifar_net.pth", weights_only=True).keys() == build("small", 10, 32).state_dict().keys()
    )
    assert not (run.folder / "model.pth").exists()
    named = {f"class/{cifar10.CLASSES[label]}" for label in arrays.evaluation_labels}
    assert named == {key for key in run.metrics[-1] if key.startswith("class/")}
    assert train("vision", *OPTIONS, folder="again").exit_code == 0
    assert site.requests == ["/data/cifar-10-binary.tar.gz"]
    assert [path.name for path in cache.iterdir()] == ["cifar10"]


def test_a_damaged_archive_is_not_kept_and_the_hub_is_asked(
    train: Start, site: Site, hub: HubServer, arrays: Arrays, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = bytearray(site.content or b"")
    right[len(right) // 2] ^= 1
    site.content = bytes(right)
    failed = train("vision", *OPTIONS, folder="failed")
    assert failed.outcomes[0]["outcome"] == "configuration"
    said = capsys.readouterr().err
    assert "arrived damaged: its MD5 is" in said
    assert f"put {cifar10.ARCHIVE} into {cache}" in said
    assert "--dataset glyphs" in said
    assert list(cache.iterdir()) == []
    on_the_hub(hub, arrays)
    assert train("vision", *OPTIONS).exit_code == 0
    assert equal(read_arrays(cache / "cifar10")[0], arrays)


def test_without_a_network_an_archive_in_the_cache_is_enough(
    train: Start, site: Site, hub: HubServer, arrays: Arrays, cache: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert train("vision", *OPTIONS, folder="without").outcomes[0]["outcome"] == "configuration"
    said = capsys.readouterr().err
    assert "HF_HUB_OFFLINE is set" in said
    assert "slipway data fetch uoft-cs/cifar10 --kind dataset" in said
    cache.mkdir(parents=True, exist_ok=True)
    (cache / cifar10.ARCHIVE).write_bytes(b"something else")
    assert train("vision", *OPTIONS, folder="wrong").outcomes[0]["outcome"] == "configuration"
    assert f"{cache / cifar10.ARCHIVE}: it arrived damaged" in capsys.readouterr().err
    (cache / cifar10.ARCHIVE).write_bytes(site.content or b"")
    assert train("vision", *OPTIONS).exit_code == 0
    assert equal(read_arrays(cache / "cifar10")[0], arrays)
    assert (site.requests, hub.requests) == ([], [])


def test_of_two_processes_one_fetches(job: Start, hub: HubServer, arrays: Arrays, cache: Path) -> None:
    on_the_hub(hub, arrays)
    # Workers know the real address, over a proxy that there is not: the Hub is left.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("https_proxy", "http://127.0.0.1:9")
        run = job("vision", *OPTIONS)
    assert run.exit_code == 0, run.output
    assert len([request for request in hub.requests if request.startswith("GET /cdn/")]) == 2  # each file once
    assert equal(read_arrays(cache / "cifar10")[0], arrays)
    assert (run.folder / "cifar_net.pth").is_file()


def test_arrays_come_back_as_they_were_written(tmp_path: Path, arrays: Arrays) -> None:
    write_arrays(tmp_path, arrays, lambda: None)
    back, checksum = read_arrays(tmp_path)
    assert equal(back, arrays)
    assert read_arrays(tmp_path)[1] == checksum
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigurationError, match="Delete it, and it will be made again"):
        read_arrays(tmp_path)


# Folders


def context(folder: Path) -> Context:
    return Context(read_place(worker_environment(folder / "run", "none")), CPU, None, Heartbeat(folder / "heartbeat"))


def picture_folder(root: Path, parts: tuple[str, ...] = ("train", "val"), count: int = 20) -> Path:
    """Plain pictures, red ones and blue ones, of several sizes and kinds."""
    random = np.random.default_rng(0)
    for part in parts:
        for label, name in enumerate(("blue", "red")):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 60, (20 + number, 40 - number, 3)).astype(np.uint8)
                pixels[..., 2 * (1 - label)] += 150
                suffix = ("png", "JPEG")[number % 2]
                Image.fromarray(pixels).save(root / part / name / f"{number}.{suffix}")
    (root / parts[0] / "red" / "notes.txt").write_text("no picture")
    return root


def test_a_folder_of_pictures_is_learnt(train: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = picture_folder(tmp_path / "data")
    options = ("--dataset", f"folder:{data}", "--image-size", 24, "--batch-size", 8, "--steps", 30, "--warmup", 0)
    run = train("vision", *options, "--lr", 0.05, "--workers", 2)
    assert run.exit_code == 0
    assert run.metrics[-1]["accuracy"] == 1
    printed = capsys.readouterr().out
    assert "40 samples" in printed
    assert "red     100.00%" in printed
    again = train("vision", *options, "--lr", 0.05, folder="again")  # without threads
    assert again.metrics[-1]["val_loss"] == run.metrics[-1]["val_loss"]


@pytest.mark.parametrize(
    ("remove", "answer"),
    [("val", "none that is called val"), ("train/red", "has the class red"), ("val/*/*", "no pictures to evaluate on")],
)
def test_a_folder_without_some_part_says_what_it_has_to_hold(tmp_path: Path, remove: str, answer: str) -> None:
    data = picture_folder(tmp_path, count=2)
    for path in sorted(data.glob(f"{remove}/**/*"), reverse=True) + sorted(data.glob(remove)):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    with pytest.raises(ConfigurationError, match=answer):
        list_files(data)


def test_some_of_the_pictures_are_from_all_classes(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "data")
    pictures: Pictures = open_folder(data, 16, Variation(0, True, 0), (6, 4), 1, context(tmp_path))
    assert (pictures.count, pictures.judged) == (6, 4)
    assert pictures.train(torch.arange(6), torch.arange(6))[1].tolist() == [0, 0, 0, 1, 1, 1]
    shown, labels = pictures.evaluation(torch.arange(4))
    assert (shown.shape, shown.dtype, labels.tolist()) == ((4, 16, 16, 3), torch.uint8, [0, 0, 1, 1])
    empty, _ = pictures.evaluation(torch.arange(0))
    assert empty.shape == (0, 16, 16, 3)


def test_pictures_of_any_mode_are_read_in_their_colours_and_without_a_warning(tmp_path: Path) -> None:
    grey = np.linspace(0, 255, 16).astype(np.uint8).reshape(4, 4)
    eight = Image.fromarray(grey)
    pictures = {mode: eight.convert(mode) for mode in ("L", "LA", "P", "RGB", "RGBA")}
    pictures |= {"sixteen bits": Image.fromarray(grey.astype(np.uint16) * 257)}
    for mode, picture in pictures.items():
        picture.save(tmp_path / f"{mode}.png")
    eight.convert("P").save(tmp_path / "transparent.png", transparency=bytes(range(16)))
    for path in tmp_path.iterdir():
        assert (read_picture(path).numpy() == grey).all(), path.name
    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(ConfigurationError, match=r"float.tiff cannot be read as a picture \(32 bits"):
        read_picture(tmp_path / "float.tiff")


def sixteen_bit_png(pixels: np.ndarray) -> bytes:
    """A PNG with 16 bits for each value, from (height, width, 1 to 4), which Pillow cannot write in colour."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, (0, 4, 2, 6)[channels - 1], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    packed = [
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(("bits", "shift"), [(16, 8), (12, 4), (10, 2), (8, 0), (5, 0)])
@pytest.mark.parametrize(
    "kind", ["grey", "grey with alpha", "colour", "colour with alpha", "tiff", "a tenth is of 8 bits"]
)
def test_pictures_of_12_bits_in_16_keep_their_brightness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, bits: int, shift: int
) -> None:
    grey = (np.arange(64 * 64).reshape(64, 64) * (2**bits - 1) // (64 * 64 - 1)).astype(np.uint16)
    for name, values in (("dark", grey // 2), ("light", grey)):
        for number in range(10):
            (folder := tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            if kind == "tiff":
                Image.fromarray(values).save(folder / f"{number}.tiff")
            elif kind == "a tenth is of 8 bits" and number == 3:
                Image.fromarray((values >> shift).astype(np.uint8)).save(folder / f"{number}.png")
            else:
                opaque = [np.full_like(values, 65535)] if "alpha" in kind else []
                layers = [values] * (3 if "colour" in kind else 1) + opaque
                (folder / f"{number}.png").write_bytes(sixteen_bit_png(np.stack(layers, -1)))
    data: Pictures = open_folder(tmp_path / "data", 56, Variation(0, False, 0), (None, None), 2, context(tmp_path))
    shown, labels = data.evaluation(torch.arange(2))
    assert labels.tolist() == [0, 1]
    wanted = (grey >> shift)[4:60, 4:60].astype(int)
    assert np.abs(shown[1, ..., 0].numpy().astype(int) - wanted).max() <= 1
    assert abs(float(shown[0].float().mean()) - wanted.mean() / 2) < 1.5
    assert shown.shape == (2, 56, 56, 3)
    told = f"16-bit pictures: values up to {2**bits - 1:,} ({bits} bits), so all are shifted right by {counted(shift, 'bit')}\n"
    assert capsys.readouterr().out.count(told) == 1
    assert (f"shifted by {shift}" in data.identity) == (shift != 8)


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("content", [b"", b"no picture", None])
def test_a_damaged_picture_is_named(
    train: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, content: bytes | None
) -> None:
    data = picture_folder(tmp_path / "data", count=2)
    broken = data / part / "red" / "0.png"
    broken.write_bytes(broken.read_bytes()[:-300] if content is None else content)
    run = train("vision", "--dataset", f"folder:{data}", "--batch-size", 4, "--steps", 1, "--workers", 1)
    assert run.outcomes[0]["outcome"] == "configuration"
    said = capsys.readouterr().err
    assert f"{broken} cannot be read as a picture" in said
    assert "Traceback" not in said
    assert os.path.exists(broken)  # noqa: PTH110
