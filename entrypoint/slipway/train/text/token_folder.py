"""Folders of tokens: `manifest.json`, `train-00000.bin` …, `validation-00000.bin` …, and the tokenizer's file.

A shard contains only tokens, uint16 or uint32, little-endian. The shards of a part are one long sequence and may be cut
anywhere; `Stream` reads them in place, and `verify_shards` compares them with their checksums once. Numpy reads one with
`np.memmap(path, "<u2")`. Torch is not needed here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipway.options.dataset import MANIFEST
from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.fetch import has_checksum
from slipway.train.text.coverage import Coverage
from slipway.train.text.tokenizer import BYTES, FILE, FileTokenizer, Tokenizer, open_tokenizer
from slipway.train.worker.prepared import cache_folder

FORMAT = 1
DTYPES: Mapping[str, str] = {"uint16": "<u2", "uint32": "<u4"}


@dataclass(frozen=True)
class Shard:
    """One file; `largest` is the largest token in it."""

    name: str
    tokens: int
    sha256: str
    largest: int


@dataclass(frozen=True)
class Part:
    """Training or validation: how much text it was (UTF-8 bytes, without the tokens that end documents), and its files."""

    documents: int
    tokens: int
    bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class TokenFolder:
    """The content of a manifest. `settings` and `sources` record how it was made."""

    path: Path
    dtype: str
    tokenizer: Mapping[str, Any]  # name, identity (sha256 of tokenizer.json, or bytes), size, end
    train: Part
    validation: Part
    settings: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]
    coverage: Coverage

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of both parts."""
        return *self.train.shards, *self.validation.shards

    @property
    def parts_said(self) -> bool:
        """Whether the user decided what is for validation: by a share, or by the files' names."""
        return self.settings.get("validation") is not None or any(source.get("part") for source in self.sources)

    @property
    def identity(self) -> str:
        """Differs from that of any other tokens, and does not depend on the folder's path."""
        held = [[shard.sha256 for shard in part.shards] for part in (self.train, self.validation)]
        return hashlib.sha256(json.dumps([self.tokenizer["identity"], self.dtype, held]).encode()).hexdigest()


def manifest_text(folder: TokenFolder) -> str:
    """Return the manifest as it is written."""
    return json.dumps({"format": FORMAT, **manifest_values(folder)}, indent=1) + "\n"


def manifest_values(folder: TokenFolder) -> dict[str, Any]:
    """Return the content of the manifest as JSON values, without the folder's path."""
    values: dict[str, Any] = json.loads(json.dumps({**asdict(folder), "path": None}))
    del values["path"]
    return values


def read_folder(path: Path) -> TokenFolder:
    """Read a manifest, and check that every shard exists with its size. Raises ConfigurationError."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] > FORMAT:
            raise ConfigurationError(
                f"{path / MANIFEST} has format {manifest['format']}, this version of slipway reads up to {FORMAT}."
            )
        train, validation = (
            Part(**{**part, "shards": tuple(Shard(**shard) for shard in part["shards"])})
            for part in (manifest["train"], manifest["validation"])
        )
        folder = TokenFolder(
            path,
            manifest["dtype"],
            manifest["tokenizer"],
            train,
            validation,
            manifest["settings"],
            manifest["sources"],
            Coverage(**manifest["coverage"]),
        )
        width, size = np.dtype(DTYPES[folder.dtype]).itemsize, int(folder.tokenizer["size"])
    except FileNotFoundError:
        raise ConfigurationError(f"{path} holds no {MANIFEST}; `slipway data prepare` makes such folders.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path / MANIFEST} cannot be read ({error!r}).") from None
    for shard in folder.shards:
        check_shard(path, shard, width, size)
    return folder


def check_shard(folder: Path, shard: Shard, width: int, vocab_size: int) -> None:
    """Raise ConfigurationError unless the file exists with `width` bytes per token, all of the vocabulary."""
    file = folder / shard.name
    if file.parent != folder:
        raise ConfigurationError(f"{folder / MANIFEST} names {shard.name}, which is not in its folder.")
    found = file.stat().st_size if file.is_file() else None
    if found != shard.tokens * width:
        there = "is missing" if found is None else f"has {found:,} bytes instead of {shard.tokens * width:,}"
        raise ConfigurationError(f"{file} {there}; copy the folder again, or prepare it again.")
    if shard.largest >= vocab_size:
        raise ConfigurationError(f"{file} holds the token {shard.largest}; its tokenizer has {vocab_size}.")


def open_own_tokenizer(folder: TokenFolder) -> Tokenizer:
    """Return the tokenizer that made the tokens. Raises ConfigurationError if its file was replaced."""
    identity, name = folder.tokenizer["identity"], str(folder.tokenizer["name"])
    if identity == BYTES:
        return open_tokenizer(BYTES)
    if not (folder.path / FILE).is_file():
        raise ConfigurationError(f"{folder.path / FILE} is missing; it is the tokenizer {name}.")
    tokenizer = FileTokenizer(folder.path / FILE, name)
    if tokenizer.identity != identity:
        raise ConfigurationError(
            f"{folder.path / FILE} is not the tokenizer that made these tokens: its sha256 is {tokenizer.identity}, not "
            f"{identity}."
        )
    return tokenizer


class Stream:
    """Consecutive arrays as one sequence: memory maps, of which only what is asked for is read."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Take one-dimensional arrays of integers."""
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)

    def __len__(self) -> int:
        """The length of all together."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Return `length` numbers from each of the `starts`, int64, (len(starts), length); a window may cross arrays."""
        windows = np.empty((len(starts), length), np.int64)
        for window, start in zip(windows, starts.tolist(), strict=True):
            done, number = 0, int(np.searchsorted(self._ends, start, side="right"))
            while done < length:
                array = self._arrays[number]
                offset = start + done - (int(self._ends[number]) - len(array))
                taken = array[offset : offset + length - done]
                window[done : done + len(taken)] = taken
                done, number = done + len(taken), number + 1
        return windows

    def __add__(self, other: Stream) -> Stream:
        """Both, one after the other."""
        return Stream([*self._arrays, *other._arrays])

    def split(self, place: int) -> tuple[Stream, Stream]:
        """Split into what is before a place and what is after it."""
        number = int(np.searchsorted(self._ends, place))
        array = self._arrays[number]
        cut = place - (int(self._ends[number]) - len(array))
        return Stream([*self._arrays[:number], array[:cut]]), Stream([array[cut:], *self._arrays[number + 1 :]])


@dataclass(frozen=True)
class Parts:
    """The tokens for training and for validation. `bytes_per_token` is the latter's; `identity` differs for other tokens."""

    train: Stream
    validation: Stream
    bytes_per_token: float
    identity: str


def open_parts(folder: TokenFolder, length: int) -> Parts:
    """Return both parts of a folder, for samples of `length` tokens and the one that follows.

    If the user did not say what is held out, and a part is too small for a sample, validation is the text's last sample.
    Raises ConfigurationError if there are no tokens for validation.
    """
    train, validation = (open_stream(folder, part) for part in (folder.train, folder.validation))
    place = len(train) + len(validation) - (length + 1)
    if min(len(train), len(validation)) <= length < place and not folder.parts_said:
        size, tokens = folder.train.bytes + folder.validation.bytes, len(train) + len(validation)
        return Parts(*(train + validation).split(place), size / tokens, f"{folder.identity} up to {place}")
    if not len(validation):
        raise ConfigurationError(
            f"{folder.path} has no tokens for validation. Prepare the text again with a larger --validation."
        )
    return Parts(train, validation, folder.validation.bytes / len(validation), folder.identity)


def open_stream(folder: TokenFolder, part: Part) -> Stream:
    """Return the tokens of a part, as memory maps."""
    shards = [shard for shard in part.shards if shard.tokens]
    return Stream([np.memmap(folder.path / shard.name, DTYPES[folder.dtype], "r") for shard in shards])


def verify_shards(folder: TokenFolder, tick: Callable[[], None]) -> None:
    """Compare all shards with their checksums, in several threads. Raises ConfigurationError with the wrong ones.

    Shards that were found right are recorded in the cache (`has_checksum`).
    """
    notes = cache_folder(os.environ) / "verified"

    def is_right(shard: Shard) -> bool:
        path = folder.path / shard.name
        name = hashlib.sha256(f"{path.resolve()} {shard.sha256}".encode()).hexdigest()
        return has_checksum(path, shard.sha256, notes / name, tick)

    with ThreadPoolExecutor() as pool:
        right = list(pool.map(is_right, folder.shards))
    wrong = [shard.name for shard, is_so in zip(folder.shards, right, strict=True) if not is_so]
    if wrong:
        raise ConfigurationError(
            f"{', '.join(wrong)} in {folder.path} changed since they were made: the sha256 is not the manifest's. Copy the "
            "folder again, or prepare it again."
        )
