"""Folders of tokens: `manifest.json`, `train-00000.bin` …, `validation-00000.bin` …, and the tokenizer's own file.

A shard holds nothing but tokens, uint16 or uint32, little-endian. Shards of a part are one long sequence; they may be cut
anywhere. Numpy reads one with `np.memmap(path, "<u2")`. Torch is not needed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipway.options.dataset import MANIFEST
from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.coverage import Coverage
from slipway.train.text.tokenizer import BYTES, FILE, FileTokenizer, Tokenizer, open_tokenizer

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
    """What a manifest says. `settings` and `sources` say how it was made; `coverage` is None where nobody counted."""

    path: Path
    dtype: str
    tokenizer: Mapping[str, Any]  # name, identity (sha256 of tokenizer.json, or bytes), size, end
    train: Part
    validation: Part
    settings: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]
    coverage: Coverage | None = None

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All of them."""
        return *self.train.shards, *self.validation.shards

    @property
    def parts_said(self) -> bool:
        """Whether somebody said what is for validation: by a share, or by the files' names."""
        return self.settings.get("validation") is not None or any(source.get("part") for source in self.sources)

    @property
    def identity(self) -> str:
        """Tells these tokens from all others, wherever they lie."""
        held = [[shard.sha256 for shard in part.shards] for part in (self.train, self.validation)]
        return hashlib.sha256(json.dumps([self.tokenizer["identity"], self.dtype, held]).encode()).hexdigest()


def manifest_text(folder: TokenFolder) -> str:
    """The manifest as it is written."""
    return json.dumps({"format": FORMAT, **manifest_values(folder)}, indent=1) + "\n"


def manifest_values(folder: TokenFolder) -> dict[str, Any]:
    """What the manifest says, as JSON values; not where the folder lies."""
    values: dict[str, Any] = json.loads(json.dumps({**asdict(folder), "path": None}))
    del values["path"]
    return values


def read_folder(path: Path) -> TokenFolder:
    """Read a manifest, and see that every shard is there with its size. Raises ConfigurationError."""
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
        coverage = manifest.get("coverage")
        folder = TokenFolder(
            path,
            manifest["dtype"],
            manifest["tokenizer"],
            train,
            validation,
            manifest["settings"],
            manifest["sources"],
            Coverage(**coverage) if coverage else None,
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
    """Raise ConfigurationError unless the file is there with `width` bytes for each token, all of the vocabulary."""
    file = folder / shard.name
    if file.parent != folder:
        raise ConfigurationError(f"{folder / MANIFEST} names {shard.name}, which is not in its folder.")
    found = file.stat().st_size if file.is_file() else None
    if found != shard.tokens * width:
        there = "is missing" if found is None else f"has {found:,} bytes instead of {shard.tokens * width:,}"
        raise ConfigurationError(f"{file} {there}; copy the folder again, or prepare it anew.")
    if shard.largest >= vocab_size:
        raise ConfigurationError(f"{file} holds the token {shard.largest}; its tokenizer has {vocab_size}.")


def open_own_tokenizer(folder: TokenFolder) -> Tokenizer:
    """The tokenizer that made the tokens. Raises ConfigurationError where its file is not the one it was."""
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
