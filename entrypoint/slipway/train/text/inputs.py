"""The text that `slipway data prepare` reads: which files, how their work is divided into pieces, and the documents in them.

The division depends only on the files, never on the number of processes: a piece is about PIECE bytes of input. JSON lines and
parquet consist of documents; text files are cut into chunks, at the end of a line, else of a word, else of a character.
Neither torch nor numpy is needed here, pyarrow only for parquet files.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NoReturn

from slipway.options.dataset import nearest_path, seen_from
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import listed
from slipway.train.placeholders import is_companion, require_content
from slipway.train.text.encodings import (
    explain_nul,
    explain_table,
    guess_wide,
    is_table,
    python_command,
    require_text,
)
from slipway.train.text.files import is_validation

TRAIN, VALIDATION, NEITHER = "train", "validation", "neither"
TEXT, LINES, JSON, PARQUET = "text", "JSON lines", "JSON", "parquet"
SHOWN = 12  # names in a message


@dataclass(frozen=True)
class TextSource:
    """A file to read. `name` does not depend on where it is; `part` is the part that all of it belongs to, if any."""

    path: str
    name: str
    kind: str
    size: int
    changed: int  # nanoseconds
    part: str | None = None


@dataclass(frozen=True)
class Span:
    """A stretch of a source: bytes, or row groups of parquet, of `size` bytes. `ends`: a text file's part ends with it."""

    source: int
    start: int
    stop: int
    size: int
    part: str | None = None
    ends: bool = False


def find_sources(inputs: Sequence[Path], several: bool = False) -> list[TextSource]:
    """Return the files that `inputs` mean: of a folder all of one kind, parquet before JSON lines before text.

    Raises ConfigurationError for what does not exist, is empty, is not text, or contains several data sets unless
    `several`: if each has its own parts, one may train on what another is evaluated with.
    """
    sources: list[TextSource] = []
    for given in inputs:
        try:
            sources += sources_in(given, several)
        except PermissionError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from None
    return sources


PACKED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz"})


def sources_in(given: Path, several: bool) -> list[TextSource]:
    """Return the files that one input means. Raises ConfigurationError, and PermissionError for unreadable files."""
    if not given.exists():
        raise ConfigurationError(f"There is no {given}{seen_from(str(given))}.{nearest_path(str(given))}")
    kind, paths = choose_kind([path for path in files_below(given) if path.stat().st_size])
    if not paths:
        raise ConfigurationError(f"{given} is empty; there is no text in it.")
    if kind == TEXT and all(map(is_table, paths)):
        raise ConfigurationError(explain_table(paths[0]))
    if not several:
        require_one_data_set(given, paths)
    sources = []
    for path in paths:
        if path.suffix.lower() in PACKED:
            raise ConfigurationError(f"{path} is compressed or an archive. Unpack it first.")
        if kind == PARQUET:
            require_content(path)
        else:
            require_text(path, given)
        state, name = path.stat(), path.relative_to(given.parent).as_posix()
        own = JSON if kind == LINES and spans_lines(path) else kind
        sources.append(TextSource(str(path.absolute()), name, own, state.st_size, state.st_mtime_ns))
    return sources


def choose_kind(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """Return which of these files are read, and as what. A `.json` beside other files belongs to a program and is not data."""
    for kind, suffixes in ((PARQUET, {".parquet"}), (LINES, {".jsonl", ".ndjson"})):
        if chosen := [path for path in paths if path.suffix.lower() in suffixes]:
            return kind, chosen
    return LINES if all(path.suffix.lower() == ".json" for path in paths) else TEXT, list(paths)


def files_below(path: Path) -> list[Path]:
    """The file, or all below the folder, sorted, without hidden ones and the system's. Raises OSError if it cannot be read."""
    return [file for file in entries_below(path) if file.is_file()]


def entries_below(path: Path, companions: bool = False) -> list[Path]:
    """Return what is below a folder besides folders, sorted, with or without `companions`; of a file, the file.

    Links to folders are followed. One that leads to a folder above it, or to one that was seen before, is returned itself.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    waiting, seen, above = [path], set[Path](), path.resolve().parents
    while waiting:
        top = waiting.pop(0)
        if (real := top.resolve()) in seen or real in above:
            found.append(top)
            continue
        for folder, inside, names in os.walk(top, onerror=raise_it):
            if (real := Path(folder).resolve()) in seen:
                inside.clear()
                continue
            seen.add(real)
            inside[:] = [name for name in inside if companions or not is_companion(name)]
            waiting += sorted(link for name in inside if (link := Path(folder, name)).is_symlink())
            found += [Path(folder, name) for name in names if companions or not is_companion(name)]
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def raise_it(error: OSError) -> NoReturn:
    """Raise an error that `os.walk` would ignore."""
    raise error


def count_files(inputs: Sequence[Path]) -> int:
    """Count the files that `inputs` are or contain, whether they are read or not; links that lead nowhere, too."""
    return sum(len(entries_below(given, companions=True)) for given in inputs)


def read_parts(sources: Sequence[TextSource]) -> list[TextSource]:
    """Return the sources, each for training or validation by its name, if some names say training and some something else. A name
    that says nothing counts as training.

    Without files for validation, those for tests are used; with both, tests are left out.
    """
    said = [part_in(source.name) for source in sources]
    if TRAIN not in said or not {VALIDATION, NEITHER} & set(said):
        return list(sources)
    if VALIDATION not in said:
        said = [VALIDATION if part == NEITHER else part for part in said]
    return [replace(source, part=part or TRAIN) for source, part in zip(sources, said, strict=True)]


# How data sets name the files of their parts, as in train-00000-of-00001.parquet, data/validation/0.jsonl, stories-valid.txt.
PARTS = {
    TRAIN: ("train", "training"),
    VALIDATION: ("validation", "valid", "val", "dev", "eval"),
    NEITHER: ("test",),
}
WORDS = re.compile(r"[a-z]+")
# Programs have names like train.py and test_loop.py, which say nothing about parts; their folders' names do.
PROGRAMS = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".go", ".h", ".hpp", ".java", ".js", ".jl", ".lua", ".m", ".py", ".r", ".rb"}
)
PROGRAMS |= {".ipynb", ".rs", ".scala", ".sh", ".sql", ".swift", ".toml", ".ts", ".yaml", ".yml"}
SHARDS = frozenset({"of", "part", "shard", "chunk", "split"})  # words that follow the part in a shard's name


def part_in(name: str) -> str | None:
    """Return the part that a path names: a folder or the file name begins or ends with the word.

    A word in the middle does not count: it may be part of a title.
    """
    *folders, file = name.lower().split("/")
    names = [] if Path(file).suffix in PROGRAMS else [file.partition(".")[0], file.rpartition(".")[0]]
    ends: set[str] = set()
    for text in (*folders, *names):
        words = WORDS.findall(text)
        while len(words) > 1 and words[-1] in SHARDS:
            words.pop()
        ends |= {*words[:1], *words[-1:]}
    return next((part for part, known in PARTS.items() if not ends.isdisjoint(known)), None)


def require_one_data_set(given: Path, paths: Sequence[Path]) -> None:
    """Raise ConfigurationError if several folders in `given` each have files for training and for something else."""
    parts: dict[str, set[str]] = {}
    for path in paths:
        *folders, file = path.relative_to(given).parts if path != given else (path.name,)
        part = part_in("/".join([*folders, file]))
        # train/en and test/en are one data set.
        own = takewhile(lambda folder: part_in(f"{folder}/") is None, folders)
        if part:
            parts.setdefault("/".join(own) or ".", set()).add(part)
    found = sorted(name for name, said in parts.items() if TRAIN in said and len(said) > 1)
    if len(found) > 1:
        raise ConfigurationError(
            f"{given} holds {len(found)} data sets, each with its own files for evaluation: {listed(found, SHOWN)}. Training on "
            f"one could include the evaluation data of another. Select one, such as file:{given / found[0]} (of the Hub "
            f"hub:OWNER/NAME/{found[0]}), or combine those that you want: slipway data prepare "
            f"{' '.join(shlex.quote(str(given / name)) for name in found[:2])} … --out DIR"
        )


PIECE = 2**24  # bytes of input per piece, the unit of work that an interruption repeats


def plan_pieces(sources: Sequence[TextSource], column: str, share: float) -> list[list[Span]]:
    """Return all spans, in order, grouped into pieces. `share` of the text is for validation unless names say.

    Raises ConfigurationError for a parquet file without `column`.
    """
    pieces: list[list[Span]] = []
    room = 0
    for span in all_spans(sources, column, share):
        if room <= 0:
            pieces.append([])
            room = PIECE
        pieces[-1].append(span)
        room -= span.size
    return pieces


def all_spans(sources: Sequence[TextSource], column: str, share: float) -> Iterator[Span]:
    """Yield each span; those of text files come last, in the order of `plan_texts`."""
    texts = []
    for number, source in enumerate(sources):
        if source.part == NEITHER:
            continue
        if source.kind == TEXT:
            texts.append(number)
        elif source.kind == JSON:
            yield Span(number, 0, source.size, source.size, source.part)
        elif source.kind == LINES:
            for start in range(0, source.size, PIECE):
                stop = min(start + PIECE, source.size)
                yield Span(number, start, stop, stop - start, source.part)
        else:
            for group, size in enumerate(row_groups(source, column)):
                yield Span(number, group, group + 1, size, source.part)
    yield from plan_texts(sources, texts, share)


def plan_texts(sources: Sequence[TextSource], texts: Sequence[int], share: float) -> Iterator[Span]:
    """Yield the spans of text files. Files are ordered by their names' hashes, and the end of the order is for validation.

    So one file gives its end, many files give a random few as a whole, and the share is met with any number of files.
    """
    undecided = [number for number in texts if sources[number].part is None]
    train = round(sum(sources[number].size for number in undecided) * (1 - share))
    for number in sorted(texts, key=lambda number: hashlib.sha256(os.fsencode(sources[number].name)).digest()):
        source = sources[number]
        if source.part is not None:
            yield from cut_spans(number, 0, source.size, source.part)
            continue
        middle = border(Path(source.path), max(0, min(train, source.size)), source.size)
        train -= source.size
        yield from cut_spans(number, 0, middle, TRAIN)
        yield from cut_spans(number, middle, source.size, VALIDATION)


def cut_spans(source: int, start: int, stop: int, part: str) -> Iterator[Span]:
    """Yield a stretch of text as spans of at most PIECE bytes; the last one ends the document."""
    for begin in range(start, stop, PIECE):
        end = min(begin + PIECE, stop)
        yield Span(source, begin, end, end - begin, part, ends=end == stop)


def row_groups(source: TextSource, column: str) -> list[int]:
    """Return the size in bytes of `column` in each row group of a parquet file. Raises ConfigurationError."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet, types

    try:
        with Path(source.path).open("rb") as raw, parquet.ParquetFile(raw) as file:  # the name may not be UTF-8
            schema, metadata = file.schema_arrow, file.metadata
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigurationError(f"{source.path} is no parquet file that can be read: {error}") from None
    if column not in schema.names:
        raise ConfigurationError(unknown_column(source.path, column, schema.names))
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)):
        raise ConfigurationError(f"{source.path}: column {column!r} holds {kind}, not text; type another --column.")
    place = next(place for place in range(metadata.num_columns) if metadata.schema.column(place).path == column)
    return [metadata.row_group(group).column(place).total_uncompressed_size for group in range(metadata.num_row_groups)]


def unknown_column(place: str, column: str, existing: Sequence[str]) -> str:
    """Return the message for a column that does not exist."""
    return (
        f"{place} has no column {column!r}. Its columns are: {listed(existing, SHOWN) or 'none'}. Type --column NAME."
    )


SIGHT = 2**16  # bytes that are searched for a line end


def border(path: Path, offset: int, size: int) -> int:
    """Return the first place from `offset` on where the file, of `size` bytes, may be cut; its end if there is none.

    A line ends after its newline. A word ends before the space that follows, since tokens begin with spaces.
    """
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    with path.open("rb") as file:
        file.seek(offset - 1)
        seen = file.read(SIGHT)
    if (newline := seen.find(b"\n")) >= 0:
        return offset + newline
    if (space := seen.find(b" ", 1)) >= 0:
        return offset - 1 + space
    # A byte 10xxxxxx continues the character before it.
    start = next((place for place, byte in enumerate(seen[1:5]) if byte & 0xC0 != 0x80), 0)
    return min(offset + start, size)


CHUNK = 2**20  # bytes of a text file that the tokenizer gets as one text
ROWS = 1024  # of parquet that are in memory at once


@dataclass(frozen=True)
class Chunk:
    """Text for one part; `ends`: a document ends with it."""

    text: str
    part: str
    ends: bool = True


def read_chunks(
    sources: Sequence[TextSource], span: Span, column: str, share: float, zero_ends: bool = False
) -> Iterator[Chunk]:
    """Yield the text of a span, in order, without empty documents. `zero_ends`: the tokenizer ends documents by byte 0.

    Raises ConfigurationError with the place of what is not text, OSError if the file cannot be read.
    """
    source = sources[span.source]
    if source.kind == TEXT:
        yield from read_text_file(source, span)
        return
    read = {LINES: read_json_lines, JSON: read_json, PARQUET: read_rows}[source.kind]
    for text in read(source, span, column):
        if text:
            if "\0" in text and (zero_ends or guess_wide(text.encode())):
                raise ConfigurationError(explain_zero(source, column))
            yield Chunk(text, span.part or (VALIDATION if is_validation(text, share) else TRAIN))


def read_text_file(source: TextSource, span: Span) -> Iterator[Chunk]:
    """Yield a text file's bytes between two borders, in chunks that end at borders. The last one ends the document."""
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
                text = text.removeprefix("\ufeff")  # editors on Windows write it at the beginning of a file
            if text or (span.ends and stop == span.stop):
                yield Chunk(text, str(span.part), span.ends and stop == span.stop)


def not_utf8(place: str, byte: int, path: Path) -> ConfigurationError:
    """Return the error for bytes that are not text."""
    return ConfigurationError(
        f"{place} is not UTF-8 ({byte:#04x}). If it is text, convert it from the encoding that it has (latin1, cp1252, "
        f"gbk, …): iconv -f latin1 -t utf-8 {shlex.quote(str(path))} > NEW; if it is not text, name only the files that you want."
    )


def read_json_lines(source: TextSource, span: Span, column: str) -> Iterator[str | None]:
    """Yield the texts of the JSON lines that begin in a stretch of a file."""
    path = Path(source.path)
    with path.open("rb") as file:
        if span.start:
            file.seek(span.start - 1)
            file.readline()  # the span in which this line begins reads it
        while (place := file.tell()) < span.stop and (line := file.readline()):
            if line.strip():
                try:
                    yield text_in_line(line, column)
                except ValueError as error:
                    raise ConfigurationError(f"{path}:{number_of(path, place)} {error}") from None


def text_in_line(line: bytes, column: str) -> str | None:
    """Return the text in a JSON line. Raises ValueError with what is wrong with it."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.object[error.start]:#04x}.") from None
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}. JSON lines have one object in each line.") from None
    return text_in(value, column)


def text_in(value: object, column: str) -> str | None:
    """Return the text in an object of JSON. Raises ValueError with what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError(f"does not contain an object, such as {{{json.dumps(column)}: …}}.")
    if column not in value:
        raise ValueError(unknown_column("", column, list(value)).strip())
    text = value[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{column!r} is {json.dumps(text)[:40]}, not text; type another --column.")
    # JSON can represent half a character (a lone surrogate), which UTF-8 cannot.
    return text.encode(errors="replace").decode() if text else text


def spans_lines(path: Path) -> bool:
    """Whether a file of JSON is an array or has an object over several lines, so that it is not JSON lines."""
    with path.open("rb") as file:
        head = file.read(SIGHT).removeprefix(codecs.BOM_UTF8).lstrip()
    line, newline, _ = head.partition(b"\n")
    try:
        if newline:
            json.loads(line)
    except UnicodeDecodeError:
        pass
    except ValueError:
        return True
    return head.startswith(b"[")


def note_json(sources: Sequence[TextSource]) -> str:
    """What to say of files of JSON that are read as plain text, because of their names; empty without any."""
    found = [source for source in sources if source.kind == TEXT and holds_json(Path(source.path))]
    if not found:
        return ""
    path = Path(found[0].path)
    suffix = ".json" if spans_lines(path) else ".jsonl"
    rename = shlex.join(["mv", str(path), str(path.with_suffix(suffix))])
    how = "give files of JSON alone" if path.suffix.lower() == suffix else f"type {rename}"
    names = listed([source.name for source in found], SHOWN)
    return (
        f"note: JSON is read as plain text, with its braces and keys: {names}. To train on the text in it alone, {how}"
    )


def holds_json(path: Path) -> bool:
    """Whether a file begins with an object of JSON, or with an array of such."""
    with path.open("rb") as file:
        head = file.read(SIGHT)
    text = head.decode(errors="ignore").removeprefix("\ufeff")
    if not (begin := re.match(r'\s*(\[\s*)?(?=\{\s*")', text)):
        return False
    try:
        json.JSONDecoder().raw_decode(text, begin.end())
    except ValueError:
        return len(head) == SIGHT  # the object may end later
    return True


BETWEEN = re.compile(r"[\s,]*")  # two objects


def read_json(source: TextSource, span: Span, column: str) -> Iterator[str | None]:
    """Yield the texts of the objects in a JSON array, or of objects one after another. CHUNK or one object is in memory."""
    path, decode = Path(source.path), json.JSONDecoder().raw_decode
    text, at, line, inside, ended = "", 0, 1, False, False
    with path.open(encoding="utf-8-sig") as file:
        while True:
            begin = BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            line, at = line + text.count("\n", at, begin), begin
            problem = "it ends within an array" if inside else ""
            if text.startswith("]" if inside else "[", at):
                inside, at = not inside, at + 1
                continue
            if at < len(text):
                try:
                    value, end = decode(text, at)
                    yield text_in(value, column)
                    line, at = line + text.count("\n", at, end), end
                    continue
                except json.JSONDecodeError as error:
                    problem = error.msg
                    # Otherwise the rest of the object may not have been read yet.
                    ended |= not problem.startswith("Unterminated string") and error.pos < len(text) - 10
                    line += text.count("\n", at, error.pos) if ended else 0
                except ValueError as error:
                    raise ConfigurationError(f"{path}:{line} {error}") from None
            if ended and problem:
                raise ConfigurationError(
                    f"{path}:{line} is no JSON: {problem}. It has to be an array of objects, or objects one after another."
                )
            if ended:
                return
            try:
                more = file.read(max(CHUNK, len(text) - at))
            except UnicodeDecodeError as error:
                raise not_utf8(str(path), error.object[error.start], path) from None
            text, at, ended = text[at:] + more, 0, not more


def number_of(path: Path, place: int) -> int:
    """Return the number of the line that begins at a byte."""
    with path.open("rb") as file:
        return 1 + sum(file.read(min(CHUNK, place - start)).count(b"\n") for start in range(0, place, CHUNK))


def read_rows(source: TextSource, span: Span, column: str) -> Iterator[str | None]:
    """Yield the texts in row groups of a parquet file, a few rows at a time."""
    import pyarrow
    from pyarrow import parquet

    try:
        with Path(source.path).open("rb") as raw, parquet.ParquetFile(raw) as file:  # the name may not be UTF-8
            for rows in file.iter_batches(
                ROWS, row_groups=range(span.start, span.stop), columns=[column], use_threads=False
            ):
                yield from rows.column(0).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{source.path} is damaged: {error}") from None


def explain_zero(source: TextSource, column: str) -> str:
    """Return the message for a document of JSON lines or parquet that contains the character 0, with what to do."""
    path = Path(source.path)
    if source.kind != PARQUET:
        command = f"sed 's/\\\\u0000//g' {shlex.quote(str(path))} > NEW{path.suffix}"
    else:
        command = python_command(
            f"import pyarrow.compute as c, pyarrow.parquet as p; n = {column!r}; d = p.read_table({str(path)!r}); "
            "p.write_table(d.set_column(d.column_names.index(n), n, c.replace_substring(d[n], chr(0), '')), 'NEW.parquet')"
        )
    return (
        f"{path}: {column!r} contains the NUL character (U+0000), which is not text and may be read as the end of a document. "
        f"Remove it: {command}"
    )
