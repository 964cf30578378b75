"""`cifar10`: 50,000 + 10,000 small photographs in ten classes (Krizhevsky, "Learning Multiple Layers of Features", 2009).

First comes the archive of the binary version, from the place that torchvision's own downloader uses and with a checksum
known beforehand; the version that torchvision itself reads is made of pickles, which run code. Where it cannot be had,
parquet from the Hub. An archive that lies in the cache already is taken without any network.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from slipway.protocol.errors import DISK_ERRORS
from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.causes import HubError
from slipway.train.hub.fetch import fetch
from slipway.train.pictures.arrays import Arrays, Bytes, read_arrays, write_arrays
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import cache_folder, make_together

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of the training pictures: https://github.com/kuangliu/pytorch-cifar/issues/19
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
ARCHIVE, MD5 = "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
TRAIN, EVALUATION = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",)
SIZE = 32
REPO, PARQUET = "uoft-cs/cifar10", "plain_text/{part}-00000-of-00001.parquet"
PIECE = 2**20  # bytes
PATIENCE = 30.0  # seconds without a byte


def open_cifar10(context: Context) -> tuple[Arrays, str]:
    """The pictures, and what identifies them; fetched once per node and kept in the cache. By every rank.

    Raises ConfigurationError and HubError where they cannot be had.
    """
    folder = cache_folder(os.environ) / "cifar10"
    make_together(context, folder, partial(make_cifar10, folder.with_name(ARCHIVE)))
    arrays, checksum = read_arrays(folder)
    return arrays, f"cifar10 {checksum}"


def make_cifar10(archive: Path, folder: Path, tick: Callable[[], None]) -> None:
    """Fetch the pictures from wherever they can be had, `archive` first, and write them into `folder` as arrays."""
    from huggingface_hub import constants

    try:
        if archive.is_file():
            arrays = read_archive(archive, tick)
        elif constants.is_offline_mode():
            raise OSError("HF_HUB_OFFLINE is set")
        else:
            download_archive(binary_url(), folder / ARCHIVE, tick)
            arrays = read_archive(folder / ARCHIVE, tick)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        if archive.is_file():
            raise ConfigurationError(f"{archive}: {error}. Delete it, or put the right one there.") from None
        print(f"{ARCHIVE}: {error}; asking the Hub", flush=True)
        arrays = read_parquet(tick, f"{ARCHIVE}: {error}", archive)
    (folder / ARCHIVE).unlink(missing_ok=True)
    write_arrays(folder, arrays, tick)


def binary_url() -> str:
    """Where the archive lies: beside the one that torchvision downloads."""
    from torchvision.datasets import CIFAR10

    url: str = CIFAR10.url
    return f"{url.rpartition('/')[0]}/{ARCHIVE}"


def download_archive(url: str, path: Path, tick: Callable[[], None]) -> None:
    """Fetch a file. Raises OSError where it cannot be had, or stands still for PATIENCE seconds.

    torchvision's own function would wait for ever, and cannot say that it goes on.
    """
    print(f"fetching {url}", flush=True)
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer, path.open("wb") as file:  # noqa: S310  # torchvision's
        while piece := answer.read(PIECE):
            file.write(piece)
            tick()


def read_archive(path: Path, tick: Callable[[], None]) -> Arrays:
    """The pictures in the binary archive. Raises ValueError where its checksum is not the one that is known."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if found != MD5:
        raise ValueError(f"it arrived damaged: its MD5 is {found}, not {MD5}")
    tick()
    with tarfile.open(path, "r:gz") as archive:
        # The data set's own page: records of a byte for the label, then all red, all green, all blue, row by row.
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        parts = []
        for names in (TRAIN, EVALUATION):
            content = b"".join(read_member(archive, members[name]) for name in names)
            rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * SIZE * SIZE)
            parts += [np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)), rows[:, 0]]
            tick()
    return Arrays(*parts)


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The content of a file in an archive."""
    file = archive.extractfile(member)
    assert file is not None  # it is a file
    return file.read()


def read_parquet(tick: Callable[[], None], before: str, archive: Path) -> Arrays:
    """The pictures from the Hub's parquet files; `before` says what failed before.

    Raises ConfigurationError, or HubError where it may not fail again, with what to type.
    """
    from pyarrow import parquet  # type: ignore[import-untyped]

    names = [PARQUET.format(part=part) for part in ("train", "test")]
    try:
        folder = fetch(REPO, kind="dataset", include=names, tick=tick)
    except (ConfigurationError, HubError) as error:
        raise type(error)(
            f"CIFAR-10 is not in the cache and cannot be fetched. {before}. From the Hub: {error} Or put {ARCHIVE} into "
            f"{archive.parent}, where it is found without a network; or train on what needs none: --dataset glyphs"
        ) from error
    parts = []
    for name in names:
        table = parquet.read_table(folder / name)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            parts.append(np.stack(list(ticking(pool.map(decode_png, table["img"].to_pylist()), tick))))
        parts.append(table["label"].to_numpy().astype(np.uint8))
    return Arrays(*parts)


def decode_png(cell: dict[str, Any]) -> Bytes:
    """A PNG in a cell of the table: uint8 (32, 32, 3)."""
    from PIL import Image

    with Image.open(io.BytesIO(cell["bytes"])) as image:
        return np.asarray(image.convert("RGB"))


def ticking(items: Iterator[Bytes], tick: Callable[[], None]) -> Iterator[Bytes]:
    """The same, with a tick now and then."""
    for number, item in enumerate(items):
        if number % 1000 == 0:
            tick()
        yield item
