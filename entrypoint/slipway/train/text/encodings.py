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
# Arrow's two forms, and how pyarrow opens each.
FILE_FORM, STREAM_FORM = "open_file", "open_stream"
ARROW_FORMS = ((b"ARROW1\0\0", FILE_FORM), (b"\xff\xff\xff\xff", STREAM_FORM))  # datasets' save_to_disk writes streams
ARROW_SUFFIXES = (".arrow", ".feather")
UNPACK = "compressed or an archive. Unpack it first."
WEIGHTS = "a model's weights, not text."
# With what no text has after the letters: a text about a format may begin with its name.
FORMATS = (
    (b"PAR1\x15", "a parquet file without its suffix. Rename it so that it ends with .parquet."),
    (b"\x1f\x8b", UNPACK), (b"BZh", UNPACK), (b"\xfd7zXZ", UNPACK), (b"\x28\xb5\x2f\xfd", UNPACK), (b"7z\xbc\xaf", UNPACK),
    (b"PK\x03\x04", "a zip archive, or a document of an office program; unpack it, or save it as text."),
    (b"%PDF-", "a PDF. Turn it into text: pdftotext {file} NEW.txt"),
    (b"SQLite format 3\0", "a database of SQLite. Write its text as JSON lines."),
    (b"\x89HDF\r\n", "an HDF5 file. Write its text as JSON lines or parquet."),
    (b"\x93NUMPY", "an array of numpy, not text. Prepare the text itself: slipway data prepare INPUT --out DIR"),
    (b"GGUF\2\0", WEIGHTS), (b"GGUF\3\0", WEIGHTS),
)  # fmt: skip
TABLES = {".csv": ",", ".tsv": "\t", ".psv": "|"}  # what stands between two values


def require_text(path: Path, given: Path | None = None) -> None:
    """Raise ConfigurationError if a file's first bytes are no UTF-8, with what it is. `given`: the folder that the user named."""
    if pointer := explain_pointer(path):
        raise ConfigurationError(pointer)
    with path.open("rb") as file:
        head = file.read(SEEN)
    for mark, encoding in MARKS:
        if head.startswith(mark):
            raise ConfigurationError(
                f"{path} is {encoding.upper()} and not UTF-8. Convert it: {conversion(path, encoding)}"
            )
    form = next((form for start, form in ARROW_FORMS if head.startswith(start)), "")
    if form or path.suffix.lower() in ARROW_SUFFIXES:
        raise ConfigurationError(explain_arrow(path, given or path, form))
    if what := next((what for start, what in FORMATS if head.startswith(start)), ""):
        raise ConfigurationError(f"{path} is {what.format(file=shlex.quote(str(path)))}")
    if b"\0" in head:
        raise ConfigurationError(explain_nul(path, head))


def explain_arrow(path: Path, given: Path, form: str) -> str:
    """What to do with an Arrow file of a `form`, and with all others of its suffix in the folder `given`."""
    if not form:
        return (
            f"{path} has the name of an Arrow file but is not one: it is damaged or of an older format. Write it again."
        )
    files = f"Path({str(given)!r}).rglob('*{path.suffix}')" if given.is_dir() else f"[Path({str(path)!r})]"
    command = python_command(
        "import pyarrow as a, pyarrow.parquet as p; from pathlib import Path; [p.write_table(a.ipc."
        f"{form}(a.memory_map(str(n))).read_all(), n.with_suffix('.parquet')) for n in {files}]"
    )
    return f"{path} is an Arrow file, which is not read. Write parquet beside it, which is: {command}"


def python_command(program: str) -> str:
    """The command that runs a program of one line, as a shell reads it."""
    return f'python -c "{program}"' if not set(program) & set('"$`\\!') else f"python -c {shlex.quote(program)}"


def explain_nul(path: Path, content: bytes) -> str:
    """What a text with bytes that are 0 is, and what to do."""
    if encoding := guess_wide(content):
        return f"{path} is {encoding.upper()} without a mark, and not UTF-8. Convert it: {conversion(path, encoding)}"
    if path.suffix.lower() == ".bin":
        return (
            f"{path} is binary and no text: weights, or another program's tokens. Tokens are read from folders that `slipway "
            "data prepare` made; prepare the text itself."
        )
    name = shlex.quote(str(path))
    return (
        f"{path} contains NUL characters (U+0000), which are not text and may be read as the end of a document. If it is "
        f"text, remove them: tr -d '\\000' < {name} > NEW; if it is not text, name only the files that you want."
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
    return f"iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > NEW"


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table of values between commas or the like."""
    return path.suffix.lower() in TABLES


def explain_table(path: Path) -> str:
    """What to do with a table."""
    name, between = shlex.quote(str(path)), TABLES[path.suffix.lower()]
    command = python_command(
        f"from pyarrow import csv, parquet; parquet.write_table(csv.read_csv({str(path)!r}, parse_options=csv.ParseOptions("
        f"delimiter={between!r}, newlines_in_values=True)), 'data.parquet')"
    )
    return (
        f"{path} is a table: as text its commas, quotes and other columns would be trained on, too. Write parquet: {command}, "
        f"and type --column with the column that holds the text; or, to train on all of it: cp {name} {name}.txt"
    )
