"""The text in a stretch of a file: documents of JSON lines and parquet, and text files in chunks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.encodings import explain_nul, guess_wide
from slipway.train.text.files import is_validation
from slipway.train.text.tokens.borders import border
from slipway.train.text.tokens.inputs import LINES, TEXT, TRAIN, VALIDATION, Source, Span, unknown_column

CHUNK = 2**20  # bytes of a text file that are one text to the tokenizer
ROWS = 1024  # of parquet that are in memory at once


@dataclass(frozen=True)
class Chunk:
    """Text for one part; `ends` where a document ends with it."""

    text: str
    part: str
    ends: bool = True


def read_chunks(
    sources: Sequence[Source], span: Span, column: str, share: float, zero_ends: bool = False
) -> Iterator[Chunk]:
    """The text of a span, in order, without documents that are empty. `zero_ends`: the tokenizer ends documents by byte 0.

    Raises ConfigurationError naming the place of what is no text, OSError where the file cannot be read.
    """
    source = sources[span.source]
    if source.kind == TEXT:
        yield from read_text_file(source, span)
        return
    read = read_json_lines if source.kind == LINES else read_rows
    for text in read(source, span, column):
        if text:
            if "\0" in text and (zero_ends or guess_wide(text.encode())):
                raise ConfigurationError(explain_zero(source, column))
            yield Chunk(text, span.part or (VALIDATION if is_validation(text, share) else TRAIN))


def read_text_file(source: Source, span: Span) -> Iterator[Chunk]:
    """A text file's bytes between two borders, in chunks that end at borders. The last one ends the document."""
    path, size = Path(source.path), source.size
    places = [*range(span.start, span.stop, CHUNK), span.stop]
    with path.open("rb") as file:
        for start, stop in pairwise(places):
            begin, end = border(path, start, size), border(path, stop, size)
            file.seek(begin)
            content = file.read(end - begin)
            try:
                text = content.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(f"{path} byte {begin + error.start}", content[error.start], path) from None
            if "\0" in text:
                raise ConfigurationError(explain_nul(path, content))
            if begin == 0:
                text = text.removeprefix("\ufeff")  # with which Windows' editors begin a file
            if text or (span.ends and stop == span.stop):
                yield Chunk(text, str(span.part), span.ends and stop == span.stop)


def read_json_lines(source: Source, span: Span, column: str) -> Iterator[str | None]:
    """The texts of the JSON lines that begin in a stretch of a file."""
    path = Path(source.path)
    with path.open("rb") as file:
        if span.start:
            file.seek(span.start - 1)
            file.readline()  # whose line this is part of reads it
        while (place := file.tell()) < span.stop and (line := file.readline()):
            if line.strip():
                try:
                    yield text_in_line(line, column)
                except ValueError as error:
                    raise ConfigurationError(f"{path}:{number_of(path, place)} {error}") from None


def text_in_line(line: bytes, column: str) -> str | None:
    """The text in a JSON line. Raises ValueError with what is wrong with it."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.object[error.start]:#04x}.") from None
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}. JSON lines have one object in each line.") from None
    if not isinstance(value, dict):
        raise ValueError(f"holds no object, such as {{{json.dumps(column)}: …}}.")
    if column not in value:
        raise ValueError(unknown_column("", column, list(value)).strip())
    text = value[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{column!r} is {json.dumps(text)[:40]}, not text; type another --column.")
    # JSON can spell half a character, which no text in UTF-8 holds.
    return text.encode(errors="replace").decode() if text else text


def explain_zero(source: Source, column: str) -> str:
    """What is wrong with a document of JSON lines or parquet that holds the character 0, and what to do."""
    path = Path(source.path)
    if source.kind == LINES:
        command = f"sed 's/\\\\u0000//g' {shlex.quote(path.name)} > NEW{path.suffix}"
    else:
        name = json.dumps(column)
        command = (
            "python -c 'import pyarrow.compute as c, pyarrow.parquet as p; "
            f"d = p.read_table({json.dumps(path.name)}); p.write_table(d.set_column(d.column_names.index({name}), {name}, "
            f'c.replace_substring(d[{name}], "\\0", "")), "NEW.parquet")\''
        )
    return (
        f"{path}: {column!r} holds the character 0, which texts do not hold; in tokens that are bytes it ends a document. Take "
        f"it out: {command}"
    )


def number_of(path: Path, place: int) -> int:
    """The number of the line that begins at a byte."""
    with path.open("rb") as file:
        return 1 + sum(file.read(min(CHUNK, place - start)).count(b"\n") for start in range(0, place, CHUNK))


def read_rows(source: Source, span: Span, column: str) -> Iterator[str | None]:
    """The texts in row groups of a parquet file, a few rows at a time."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    try:
        with Path(source.path).open("rb") as raw, parquet.ParquetFile(raw) as file:  # the name may not be UTF-8
            for rows in file.iter_batches(
                ROWS, row_groups=range(span.start, span.stop), columns=[column], use_threads=False
            ):
                yield from rows.column(0).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{source.path} is damaged: {error}") from None


def not_utf8(place: str, byte: int, path: Path) -> ConfigurationError:
    """The error for bytes that are no text."""
    return ConfigurationError(
        f"{place} is not UTF-8 ({byte:#04x}). If it is text, convert it from the encoding that it has (latin1, cp1252, "
        f"gbk, …): iconv -f latin1 -t utf-8 {shlex.quote(path.name)} > NEW; if it is none, name the files that you mean."
    )
