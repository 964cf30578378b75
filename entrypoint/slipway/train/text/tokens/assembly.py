"""Finished pieces of a preparation, and the shards and the manifest that they become."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipway.options.dataset import MANIFEST
from slipway.protocol.durable import replace_file, sync_folder
from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.files import hash_file
from slipway.train.snapshots.tensor_files import write_file
from slipway.train.text.coverage import Coverage
from slipway.train.text.tokens.folder import DTYPES, Part, Shard, TokenFolder, manifest_text
from slipway.train.text.tokens.inputs import TRAIN, VALIDATION
from slipway.train.text.tokens.piece import COVERAGE, PiecePlan, Written, piece_file, record_file

WORK = ".preparation"  # in the folder that is being made: the plan, and the pieces


def read_piece(work: Path, plan: PiecePlan, number: int) -> tuple[dict[str, Written], Coverage]:
    """What a finished piece gave to each part, and how much of its text the tokenizer knows.

    Raises OSError, ValueError and others where it is not finished.
    """
    record = json.loads(record_file(work, plan, number).read_bytes())
    return {part: Written(**record[part]) for part in (TRAIN, VALIDATION)}, Coverage(**record[COVERAGE])


def is_finished(work: Path, plan: PiecePlan, number: int, tick: Callable[[], None]) -> bool:
    """Whether a piece is there as it was written."""
    try:
        record, _ = read_piece(work, plan, number)
        return all(hash_file(piece_file(work, plan, number, part), tick) == record[part].sha256 for part in record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def join_pieces(
    out: Path,
    plan: PiecePlan,
    described: Mapping[str, Any],
    shard_tokens: int,
    tick: Callable[[], None],
    judge: Callable[[Coverage], object] = lambda coverage: None,
) -> TokenFolder:
    """String the pieces together, write the manifest, remove the pieces. Raises ConfigurationError where there is no text.

    `described` is what the manifest says about how the tokens were made. `judge` is called before anything is written, and
    what it raises leaves the pieces as they are.
    """
    pieces = [read_piece(out / WORK, plan, number) for number in range(len(plan.pieces))]
    records, coverage = [record for record, _ in pieces], sum((one for _, one in pieces), Coverage())
    if not sum(record[part].documents for record in records for part in (TRAIN, VALIDATION)):
        raise ConfigurationError("The input is empty; there is no text in it.")
    judge(coverage)
    parts = {}
    for name in (TRAIN, VALIDATION):
        written = [record[name] for record in records]
        parts[name] = Part(
            documents=sum(one.documents for one in written),
            tokens=sum(one.tokens for one in written),
            bytes=sum(one.bytes for one in written),
            shards=tuple(string_shards(out, plan, name, written, shard_tokens, tick)),
        )
    folder = TokenFolder(
        out, plan.dtype, train=parts[TRAIN], validation=parts[VALIDATION], coverage=coverage, **described
    )
    replace_file(out / MANIFEST, manifest_text(folder))
    shutil.rmtree(out / WORK)
    return folder


def string_shards(
    out: Path, plan: PiecePlan, part: str, written: Sequence[Written], size: int, tick: Callable[[], None]
) -> Iterator[Shard]:
    """Write the shards of a part, each under a temporary name until it is whole. Raises OSError."""
    files = [piece_file(out / WORK, plan, number, part) for number in range(len(written))]
    ends = list(accumulate(one.tokens for one in written))
    for number, start in enumerate(range(0, ends[-1], size)):
        stop = min(start + size, ends[-1])
        largest: list[int] = []

        def chunks(start: int = start, stop: int = stop, largest: list[int] = largest) -> Iterator[memoryview]:
            for tokens in stretch(files, ends, start, stop, DTYPES[plan.dtype]):
                largest.append(int(tokens.max()))
                yield tokens.data

        name = f"{part}-{number:05d}.bin"
        temporary = out / f".{name}"
        stored = write_file(temporary, chunks(), lambda _: tick())
        temporary.replace(out / name)
        yield Shard(name, stop - start, str(stored["sha256"]), max(largest))
    sync_folder(out)


def stretch(
    files: Sequence[Path], ends: Sequence[int], start: int, stop: int, dtype: str
) -> Iterator[npt.NDArray[np.unsignedinteger[Any]]]:
    """The tokens `start` … `stop` - 1 of files that lie end to end, `ends` apart; no more than one file in memory."""
    for file, begin, end in zip(files, [0, *ends], ends, strict=False):
        low, high = max(start, begin), min(stop, end)
        if low < high:
            yield np.fromfile(file, dtype, high - low, offset=(low - begin) * np.dtype(dtype).itemsize)
