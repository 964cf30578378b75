"""Text into a folder of tokens: by several processes, piece by piece, so that little is lost by an interruption.

Meanwhile `DIR/.preparation` contains the plan and a file for each piece and part. Finished pieces are then joined into shards,
and the manifest makes the folder a folder of tokens. The result does not depend on the number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipway.options.dataset import MANIFEST
from slipway.options.dataset import VALIDATION as SHARE
from slipway.protocol.durable import make_folder, replace_file, sync_folder, write_file
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted, listed
from slipway.train.hub.fetch import ByteProgress, hash_file
from slipway.train.text import token_folder
from slipway.train.text.coverage import Coverage
from slipway.train.text.encodings import is_table
from slipway.train.text.inputs import (
    NEITHER,
    SHOWN,
    TEXT,
    TRAIN,
    VALIDATION,
    TextSource,
    count_files,
    find_sources,
    note_json,
    plan_pieces,
    read_parts,
)
from slipway.train.text.piece import COVERAGE, PLAN, PiecePlan, Written, piece_file, record_file, work_through
from slipway.train.text.tokenizer import BYTES, Tokenizer

WORK = ".preparation"  # in the output folder: the plan and the pieces


@dataclass(frozen=True)
class Settings:
    """What the tokens depend on besides the files. `validation` None: by the files' names, else SHARE."""

    column: str = "text"
    validation: float | None = None
    shard_tokens: int = 2**28  # half a GiB in uint16
    dtype: str = "auto"


def prepare(
    inputs: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer,
    settings: Settings,
    processes: int,
    say: Callable[[str], None],
    tick: Callable[[], None] = lambda: None,
    judge: Callable[[Coverage], object] = lambda coverage: None,
) -> token_folder.TokenFolder:
    """Make `out` a folder of the tokens of `inputs`, or resume after an interruption.

    `tick` is called whenever there is progress; `judge` before `out` becomes such a folder, and may raise. Raises
    ConfigurationError for inputs that are not text, and if `out` has other content or was made from something else;
    OSError if it cannot be written.
    """
    settings = replace(settings, dtype=choose_dtype(settings.dtype, tokenizer))
    sources = find_sources(inputs, several=settings.validation is not None)
    if settings.validation is None:
        sources = read_parts(sources)
    say(described_sources(sources, count_files(inputs) - len(sources)))
    if note := note_json(sources):
        say(note)
    if (out / MANIFEST).exists():
        folder = finished_before(out, describe_origin(settings, tokenizer, sources))
        say(f"{out} was finished before")
        return folder
    plan = begin_plan(out, tokenizer, settings, sources)
    work, sizes = out / WORK, [sum(span.size for span in spans) for spans in plan.pieces]
    todo = [number for number in range(len(plan.pieces)) if not is_finished(work, plan, number, tick)]
    with closing(ByteProgress("tokenising", sum(sizes), say)) as progress:
        if len(todo) < len(plan.pieces):
            say(f"resuming: {len(plan.pieces) - len(todo)} of {counted(len(plan.pieces), 'piece')} finished")
            progress.add(sum(sizes) - sum(sizes[number] for number in todo))
        work_through(work, todo, processes, lambda number: progress.add(sizes[number]), tick)
    return join_pieces(out, plan, describe_origin(settings, tokenizer, sources), settings.shard_tokens, tick, judge)


def choose_dtype(wanted: str, tokenizer: Tokenizer) -> str:
    """Return the type that holds all tokens. Raises ConfigurationError if the `wanted` one does not."""
    smallest = "uint16" if tokenizer.size <= 2**16 else "uint32"
    if wanted == "uint16" != smallest:
        raise ConfigurationError(
            f"--dtype uint16 holds 65,536 different tokens, and the tokenizer {tokenizer.name} has {tokenizer.size:,}; "
            "leave it out."
        )
    return smallest if wanted == "auto" else wanted


def describe_origin(settings: Settings, tokenizer: Tokenizer, sources: Sequence[TextSource]) -> dict[str, Any]:
    """Return what the manifest records about how the tokens were made, which must be the same to resume."""
    return {
        "tokenizer": {
            "name": tokenizer.name, "identity": tokenizer.identity, "size": tokenizer.size, "end": tokenizer.end,
        },
        "settings": asdict(settings),
        "sources": [
            {"name": source.name, "bytes": source.size, "part": source.part} for source in sources
        ],
    }  # fmt: skip


def described_sources(sources: Sequence[TextSource], others: int = 0) -> str:
    """Describe what is read, the files whose names decide their part, and how many `others` are not read."""
    kinds = ", ".join(sorted({source.kind for source in sources}))
    size = sum(source.size for source in sources)
    text = f"{counted(len(sources), 'file')} ({kinds}), {counted(size, 'byte')}"
    counts = {part: sum(source.part == part for source in sources) for part in (TRAIN, VALIDATION, NEITHER)}
    if counts[TRAIN]:
        judged = [source.name for source in sources if source.part == VALIDATION]
        text += (
            f"; as their names say, {counts[TRAIN]} for training and {counts[VALIDATION]} for validation "
            f"({listed(judged, SHOWN)})"
        )
    if counts[NEITHER]:
        text += f", {counts[NEITHER]} for tests left out"
    if tables := [source.name for source in sources if source.kind == TEXT and is_table(Path(source.name))]:
        text += f"; {counted(len(tables), 'table')} among them, read as plain text ({listed(tables, SHOWN)})"
    if others:
        text += f"; {others} left out: hidden, empty, a system's own, of another kind, or links to nothing or to what is read"
    return text


def finished_before(out: Path, wanted: Mapping[str, Any]) -> token_folder.TokenFolder:
    """Return the folder that exists already. Raises ConfigurationError if it was made from or with something else."""
    folder = token_folder.read_folder(out)
    was, now = token_folder.manifest_values(folder), json.loads(json.dumps(wanted))
    pairs = [("the tokenizer", was["tokenizer"], now["tokenizer"], was["tokenizer"].get("name"))]
    pairs += [
        (f"--{name.replace('_', '-')}", was["settings"].get(name), value, was["settings"].get(name))
        for name, value in now["settings"].items()
    ]
    pairs.append(("the input", was["sources"], now["sources"], counted(len(was["sources"]), "file")))
    for name, before, after, shown in pairs:
        if before != after:
            raise ConfigurationError(
                f"{out} was made with other settings: {name} was {'the default' if shown is None else shown}. Type "
                "another --out, or remove the folder."
            )
    shutil.rmtree(out / WORK, ignore_errors=True)
    return folder


def begin_plan(out: Path, tokenizer: Tokenizer, settings: Settings, sources: Sequence[TextSource]) -> PiecePlan:
    """Return the plan after writing it to disk. Raises ConfigurationError if `out` has other content."""
    work = out / WORK
    if out.exists() and (work.is_symlink() or not work.is_dir()) and any(out.iterdir()):
        raise ConfigurationError(f"{out} is there already and holds no tokens. Type another --out.")
    share = SHARE if settings.validation is None else settings.validation
    pieces = plan_pieces(sources, settings.column, share)
    own = BYTES if tokenizer.identity == BYTES else str(out.absolute())
    plan = PiecePlan(
        tuple(sources), tuple(map(tuple, pieces)), own, tokenizer.identity, settings.column, share, settings.dtype
    )
    make_folder(out)
    make_folder(work)
    tokenizer.save(out)
    replace_file(work / PLAN, json.dumps(asdict(plan)))
    return plan


def read_piece(work: Path, plan: PiecePlan, number: int) -> tuple[dict[str, Written], Coverage]:
    """Return what a finished piece gave to each part, and how much of its text the tokenizer knows.

    Raises OSError, ValueError and others if it is not finished.
    """
    record = json.loads(record_file(work, plan, number).read_bytes())
    return {part: Written(**record[part]) for part in (TRAIN, VALIDATION)}, Coverage(**record[COVERAGE])


def is_finished(work: Path, plan: PiecePlan, number: int, tick: Callable[[], None]) -> bool:
    """Whether a piece exists as it was written."""
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
) -> token_folder.TokenFolder:
    """Join the pieces into shards, write the manifest, remove the pieces. Raises ConfigurationError if there is no text.

    `described` is what the manifest records about how the tokens were made. `judge` is called before anything is written;
    if it raises, the pieces stay.
    """
    pieces = [read_piece(out / WORK, plan, number) for number in range(len(plan.pieces))]
    records, coverage = [record for record, _ in pieces], sum((one for _, one in pieces), Coverage())
    if not sum(record[part].documents for record in records for part in (TRAIN, VALIDATION)):
        raise ConfigurationError("The input is empty; there is no text in it.")
    judge(coverage)
    parts = {}
    for name in (TRAIN, VALIDATION):
        written = [record[name] for record in records]
        parts[name] = token_folder.Part(
            documents=sum(one.documents for one in written),
            tokens=sum(one.tokens for one in written),
            bytes=sum(one.bytes for one in written),
            shards=tuple(string_shards(out, plan, name, written, shard_tokens, tick)),
        )
    folder = token_folder.TokenFolder(
        out, plan.dtype, train=parts[TRAIN], validation=parts[VALIDATION], coverage=coverage, **described
    )
    replace_file(out / MANIFEST, token_folder.manifest_text(folder))
    shutil.rmtree(out / WORK)
    return folder


def string_shards(
    out: Path, plan: PiecePlan, part: str, written: Sequence[Written], size: int, tick: Callable[[], None]
) -> Iterator[token_folder.Shard]:
    """Write the shards of a part, each under a temporary name until it is complete. Raises OSError."""
    files = [piece_file(out / WORK, plan, number, part) for number in range(len(written))]
    ends = list(accumulate(one.tokens for one in written))
    for number, start in enumerate(range(0, ends[-1], size)):
        stop = min(start + size, ends[-1])
        largest: list[int] = []

        def chunks(start: int = start, stop: int = stop, largest: list[int] = largest) -> Iterator[memoryview]:
            for tokens in stretch(files, ends, start, stop, token_folder.DTYPES[plan.dtype]):
                largest.append(int(tokens.max()))
                yield tokens.data

        name = f"{part}-{number:05d}.bin"
        temporary = out / f".{name}"
        stored = write_file(temporary, chunks(), lambda _: tick())
        temporary.replace(out / name)
        yield token_folder.Shard(name, stop - start, stored.sha256, max(largest))
    sync_folder(out)


def stretch(
    files: Sequence[Path], ends: Sequence[int], start: int, stop: int, dtype: str
) -> Iterator[npt.NDArray[np.unsignedinteger[Any]]]:
    """Yield the tokens `start` … `stop` - 1 of consecutive files that end at `ends`; at most one file is in memory."""
    for file, begin, end in zip(files, [0, *ends], ends, strict=False):
        low, high = max(start, begin), min(stop, end)
        if low < high:
            yield np.fromfile(file, dtype, high - low, offset=(low - begin) * np.dtype(dtype).itemsize)
