"""What a file given as text really is, from its name and its first bytes, and what to do about it."""

from __future__ import annotations

import codecs
import shlex
from pathlib import Path

from slipway.protocol.mistake import ConfigurationError
from slipway.train.placeholders import explain_pointer

SEEN = 4096  # bytes
# UTF-32 first: its mark for little-endian begins with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
TO_PARQUET = (
    'Write parquet: python -c \'from datasets import load_from_disk as l; l("{folder}").to_parquet("data.parquet")\''
)
ARROW = f"an Arrow file, which is not read. {TO_PARQUET}"
UNPACK = "packed; unpack it first."
WEIGHTS = "a model's weights, not text."
# With what no text has after the letters: a text about a format may begin with its name.
FORMATS = (
    (b"ARROW1\0\0", ARROW),
    (b"\xff\xff\xff\xff", ARROW),  # a stream, as datasets' save_to_disk writes it
    (b"PAR1\x15", "a parquet file without its suffix. Rename it so that it ends with .parquet."),
    (b"\x1f\x8b", UNPACK), (b"BZh", UNPACK), (b"\xfd7zXZ", UNPACK), (b"\x28\xb5\x2f\xfd", UNPACK), (b"7z\xbc\xaf", UNPACK),
    (b"PK\x03\x04", "a zip archive, or a document of an office program; unpack it, or save it as text."),
    (b"%PDF-", "a PDF. Turn it into text: pdftotext {file} NEW.txt"),
    (b"SQLite format 3\0", "a database of SQLite. Write its text as JSON lines."),
    (b"\x89HDF\r\n", "an HDF5 file. Write its text as JSON lines or parquet."),
    (b"\x93NUMPY", "an array of numpy, not text. Prepare the text itself: slipway data prepare INPUT --out DIR"),
    (b"GGUF\2\0", WEIGHTS), (b"GGUF\3\0", WEIGHTS),
)  # fmt: skip
TABLES = {".csv": ",", ".tsv": "\\t", ".psv": "|"}  # what stands between two values, as Python writes it
SUFFIXES = {".arrow": ARROW, ".feather": ARROW}


def require_text(path: Path) -> None:
    """Raise ConfigurationError where a file is no text in UTF-8, as far as its first bytes tell, with what it is."""
    if pointer := explain_pointer(path):
        raise ConfigurationError(pointer)
    with path.open("rb") as file:
        head = file.read(SEEN)
    for mark, encoding in MARKS:
        if head.startswith(mark):
            raise ConfigurationError(
                f"{path} is {encoding.upper()} and not UTF-8. Convert it: {conversion(path, encoding)}"
            )
    what = SUFFIXES.get(path.suffix.lower()) or next((what for start, what in FORMATS if head.startswith(start)), "")
    if what:
        file_name, folder = shlex.quote(path.name), path.parent
        raise ConfigurationError(f"{path} is {what.format(file=file_name, folder=folder)}")
    if b"\0" in head:
        raise ConfigurationError(explain_nul(path, head))


def explain_nul(path: Path, content: bytes) -> str:
    """What a text with bytes that are 0 is, and what to do."""
    if encoding := guess_wide(content):
        return f"{path} is {encoding.upper()} without a mark, and not UTF-8. Convert it: {conversion(path, encoding)}"
    if path.suffix.lower() == ".bin":
        return (
            f"{path} is binary and no text: weights, or another program's tokens. Tokens are read from folders that `slipway "
            "data prepare` made; prepare the text itself."
        )
    name = shlex.quote(path.name)
    return (
        f"{path} holds bytes that are 0, which texts do not hold; in tokens that are bytes they end a document. If it is text, "
        f"take them out: tr -d '\\000' < {name} > NEW; if it is none, name the files that you mean."
    )


def guess_wide(content: bytes) -> str:
    """The encoding with two or four bytes for each character that text in Latin letters would have; empty for none."""
    for width, encodings in ((4, ("utf-32le", "utf-32be")), (2, ("utf-16le", "utf-16be"))):
        count = len(content) // width
        zeros = [content[place : count * width : width].count(0) for place in range(width)]
        for encoding, letter in zip(encodings, (0, width - 1), strict=True):
            others = [zeros[place] for place in range(width) if place != letter]
            if count and zeros[letter] < count * 0.05 and min(others) > count * (0.95 if width == 4 else 0.5):
                return encoding
    return ""


def conversion(path: Path, encoding: str) -> str:
    """The command that writes a file anew in UTF-8."""
    return f"iconv -f {encoding} -t utf-8 {shlex.quote(path.name)} > NEW"


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table of values between commas or the like."""
    return path.suffix.lower() in TABLES


def explain_table(path: Path) -> str:
    """What to do with a table."""
    name = shlex.quote(path.name)
    return (
        f"{path} is a table: as text its commas, quotes and other columns would be trained on, too. Write parquet: python -c "
        f'\'from pyarrow import csv, parquet; parquet.write_table(csv.read_csv("{path.name}", parse_options=csv.ParseOptions('
        f'delimiter="{TABLES[path.suffix.lower()]}", newlines_in_values=True)), "data.parquet")\', and type '
        f"--column with the column that holds the text; or, to train on all of it: cp {name} {name}.txt"
    )
