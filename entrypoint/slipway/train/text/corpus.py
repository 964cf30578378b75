"""The text that a training reads, as tokens: what `--dataset` and `--tokenizer` mean."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from slipway.options.dataset import FILE, STDLIB, TOKENS, check_dataset, parse_hub_data
from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.fetch import fetch_together
from slipway.train.text.coverage import Coverage, judge_coverage
from slipway.train.text.files import read_stdlib
from slipway.train.text.inputs import find_sources
from slipway.train.text.preparation import Settings, prepare
from slipway.train.text.token_folder import FORMAT, Stream, open_own_tokenizer, open_parts, read_folder, verify_shards
from slipway.train.text.tokenizer import BYTES, Tokenizer, described, open_tokenizer
from slipway.train.worker.context import Context
from slipway.train.worker.prepared import act_together, cache_folder, make_together

HUB_FILES = ("*.parquet", "*.jsonl", "*.ndjson", "*.txt")


@dataclass(frozen=True)
class DeviceTokens:
    """Tokens that lie on the device as one tensor, of any integer type."""

    tokens: torch.Tensor
    on_host = False

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def windows(self, starts: torch.Tensor, length: int) -> torch.Tensor:
        """The `length` tokens from each of the `starts`."""
        return self.tokens[starts.unsqueeze(1) + torch.arange(length, device=starts.device)].long()


@dataclass(frozen=True)
class StoredTokens:
    """Tokens that stay in their files; each window is copied from there to `device`."""

    stream: Stream
    size: int  # of the vocabulary
    path: Path
    device: torch.device
    on_host = True

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.stream)

    def windows(self, starts: torch.Tensor, length: int) -> torch.Tensor:
        """The `length` tokens from each of the `starts`. Raises ConfigurationError for one that the tokenizer has not."""
        windows = self.stream.windows(starts.cpu().numpy(), length)
        # A GPU would only say that an assertion failed, somewhere, and be lost to this process.
        if windows.size and (largest := int(windows.max())) >= self.size:
            raise ConfigurationError(f"{self.path} holds the token {largest}; its tokenizer has {self.size}.")
        tokens = torch.from_numpy(windows)
        return tokens.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tokens


# A long sequence of tokens. `on_host`: it is read by the CPU, and indices are wanted there, so that no GPU is waited for.
Tokens = DeviceTokens | StoredTokens


@dataclass(frozen=True)
class Corpus:
    """Text for training and for validation, as tokens of `tokenizer`.

    `identity` tells it from other data, for `Task.data`; `bytes_per_token` is that of the validation part.
    """

    train: Tokens
    validation: Tokens
    tokenizer: Tokenizer
    identity: str
    bytes_per_token: float
    coverage: Coverage  # how much of the text the tokenizer knows


def open_corpus(
    dataset: str,
    tokenizer: Tokenizer | None,
    context: Context,
    length: int,
    column: str = "text",
    allow_unknown: bool = True,
) -> Corpus:
    """What `dataset` means, in tokens of `tokenizer`; without one in the data's own, or in bytes. By every rank.

    Samples are to have `length` tokens; `column` holds the text of JSON lines and parquet. Says which tokenizer is used, and
    how much of the text it does not know. Raises ConfigurationError for data that are not there, not of this tokenizer, or,
    without `allow_unknown`, mostly unknown to it, and what fetching raises.
    """
    corpus = find_corpus(dataset, tokenizer, context, length, column)
    context.say(described(corpus.tokenizer))
    if corpus.tokenizer.identity != BYTES:
        context.say(judge_coverage(corpus.coverage, corpus.tokenizer.name, allow_unknown))
    return corpus


def find_corpus(dataset: str, tokenizer: Tokenizer | None, context: Context, length: int, column: str) -> Corpus:
    """Return the same, and print nothing about the tokenizer."""
    check_dataset(dataset)
    scheme, _, rest = dataset.partition(":")
    if scheme == TOKENS:
        return open_tokens(Path(rest), tokenizer, dataset, context, length)
    tokenizer = tokenizer or open_tokenizer(BYTES)
    if scheme == STDLIB:
        return open_stdlib(tokenizer, context, length)
    text = Path(rest) if scheme == FILE else fetch_data(rest, context)
    settings = Settings(column=column)
    key = [FORMAT, [asdict(source) for source in find_sources([text])], asdict(settings)]
    path = prepare_together(key, lambda folder: text, tokenizer, settings, context)
    return open_tokens(path, None, dataset, context, length)


def open_stdlib(tokenizer: Tokenizer, context: Context, length: int) -> Corpus:
    """The Python standard library's source; in bytes it lies on the device as a whole."""
    text = read_stdlib()
    if tokenizer.identity == BYTES:
        train, validation = (
            DeviceTokens(torch.from_numpy(np.frombuffer(part, np.uint8).copy()).to(context.device))
            for part in (text.train, text.validation)
        )
        return Corpus(train, validation, tokenizer, f"stdlib {text.sha256}", 1.0, Coverage())

    def write(folder: Path) -> Path:
        for name, content in (("train.txt", text.train), ("validation.txt", text.validation)):
            (folder / name).write_text(content.decode(errors="replace"))
        return folder

    path = prepare_together([FORMAT, text.sha256], write, tokenizer, Settings(), context)
    return open_tokens(path, None, STDLIB, context, length)


def fetch_data(source: str, context: Context) -> Path:
    """The folder with the text of a data set of the Hub, on this node. Raises what fetching raises."""
    repo, folder = parse_hub_data(source)
    include = [f"{folder}/{files}" if folder else files for files in HUB_FILES]
    return fetch_together(context, repo, kind="dataset", include=include) / folder


def prepare_together(
    key: object, find: Callable[[Path], Path], tokenizer: Tokenizer, settings: Settings, context: Context
) -> Path:
    """The folder of a text's tokens in the cache, which one process of each node makes where it is not there yet.

    `key` is JSON that tells this text from others; `find` returns where it is, and may write it into a folder.
    """

    def make(folder: Path, tick: Callable[[], None]) -> None:
        processes = len(os.sched_getaffinity(0))
        # Named after the folder that is made, for what a killed process leaves there to be removed some day as well.
        with TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
            prepare([find(Path(scratch))], folder, tokenizer, settings, processes, context.say, tick)

    name = hashlib.sha256(json.dumps([key, tokenizer.identity]).encode()).hexdigest()[:32]
    return make_together(context, cache_folder(os.environ) / "tokens" / name, make)


def open_tokens(path: Path, tokenizer: Tokenizer | None, dataset: str, context: Context, length: int) -> Corpus:
    """A folder of tokens; shards are verified once. Raises ConfigurationError where `tokenizer` did not make them."""
    folder = read_folder(path)
    own = open_own_tokenizer(folder)
    if tokenizer is not None and tokenizer.identity != own.identity:
        raise ConfigurationError(
            f"--dataset {dataset} holds tokens of {folder.tokenizer['name']}, not of {tokenizer.name}. Leave out "
            "--tokenizer, or prepare the text again with the other."
        )
    parts = open_parts(folder, length)
    act_together(context, f"verify {path}", lambda tick: verify_shards(folder, tick))
    train, validation = (
        StoredTokens(stream, own.size, path, context.device) for stream in (parts.train, parts.validation)
    )
    identity = f"{dataset.partition(':')[0]} {parts.identity}"
    return Corpus(train, validation, own, identity, parts.bytes_per_token, folder.coverage)
