"""Tokens of many files as one sequence, read from where they lie, and compared with their checksums once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.files import hash_file
from slipway.train.text.tokens.folder import DTYPES, Part, Shard, TokenFolder
from slipway.train.worker.prepared import cache_folder


class Stream:
    """Arrays that lie end to end as one sequence: memory maps, of which nothing but what is asked for is read."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Take one-dimensional arrays of integers."""
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)

    def __len__(self) -> int:
        """The length of all together."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """`length` numbers from each of the `starts`, int64, (len(starts), length); a window may cross arrays."""
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
        """Both, one behind the other."""
        return Stream([*self._arrays, *other._arrays])

    def split(self, place: int) -> tuple[Stream, Stream]:
        """What lies before a place, and what behind it."""
        number = int(np.searchsorted(self._ends, place))
        array = self._arrays[number]
        cut = place - (int(self._ends[number]) - len(array))
        return Stream([*self._arrays[:number], array[:cut]]), Stream([array[cut:], *self._arrays[number + 1 :]])


@dataclass(frozen=True)
class Parts:
    """The tokens to train on and to judge by. `bytes_per_token` is that of the latter; `identity` tells both from others."""

    train: Stream
    validation: Stream
    bytes_per_token: float
    identity: str


def open_parts(folder: TokenFolder, length: int) -> Parts:
    """Both parts of a folder, for samples of `length` tokens and the one that follows.

    Where nobody said what is held out, and too little is for a part to have a sample, it is the text's last sample. Raises
    ConfigurationError where there are no tokens to judge by.
    """
    train, validation = (open_stream(folder, part) for part in (folder.train, folder.validation))
    place = len(train) + len(validation) - (length + 1)
    if min(len(train), len(validation)) <= length < place and not folder.parts_said:
        size, tokens = folder.train.bytes + folder.validation.bytes, len(train) + len(validation)
        return Parts(*(train + validation).split(place), size / tokens, f"{folder.identity} up to {place}")
    if not len(validation):
        raise ConfigurationError(
            f"{folder.path} has no tokens for validation. Prepare the text anew with a larger --validation."
        )
    return Parts(train, validation, folder.validation.bytes / len(validation), folder.identity)


def open_stream(folder: TokenFolder, part: Part) -> Stream:
    """The tokens of a part, as memory maps."""
    shards = [shard for shard in part.shards if shard.tokens]
    return Stream([np.memmap(folder.path / shard.name, DTYPES[folder.dtype], "r") for shard in shards])


def verify_shards(folder: TokenFolder, tick: Callable[[], None]) -> None:
    """Compare all shards with their checksums, in several threads. Raises ConfigurationError naming the wrong ones.

    What was found right is noted in the cache, and not read again while size and time of change stay the same.
    """
    notes = cache_folder(os.environ) / "verified"

    def is_right(shard: Shard) -> bool:
        path = folder.path / shard.name
        state = path.stat()
        seen = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {shard.sha256}"
        note = notes / hashlib.sha256(seen.encode()).hexdigest()
        if note.exists():
            return True
        if hash_file(path, tick) != shard.sha256:
            return False
        with suppress(OSError):  # a cache that is only read: the file is compared again next time
            notes.mkdir(parents=True, exist_ok=True)
            note.touch()
        return True

    with ThreadPoolExecutor() as pool:
        right = list(pool.map(is_right, folder.shards))
    wrong = [shard.name for shard, is_so in zip(folder.shards, right, strict=True) if not is_so]
    if wrong:
        raise ConfigurationError(
            f"{', '.join(wrong)} in {folder.path} changed since they were made: the sha256 is not the manifest's. Copy the "
            "folder again, or prepare it anew."
        )
