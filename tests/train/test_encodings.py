"""Files that are no text in UTF-8, or no content at all, are named with what they are and what to type."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import ipc, parquet

from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.checkpoints import INCLUDE, read_checkpoint_config, read_weights
from slipway.train.text.encodings import explain_table, guess_wide
from slipway.train.text.inputs import find_sources, plan_pieces, read_chunks
from slipway.train.text.preparation import described_sources
from slipway.train.text.tokenizer import open_tokenizer

pytestmark = pytest.mark.pull

PROSE = "the sea was calm and a wind rose over old hills\n" * 100
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 548105171\n"
ANNEX = b"/annex/objects/SHA256E-s31390--f50d7ac4c6b9031379986bc362fcefb65f1e52621ce1708d537e740fefc59cc0.txt\n"


def arrow(stream: bool) -> bytes:
    """A table in one of Arrow's two forms."""
    table, content = pyarrow.table({"text": ["sea", "wind"]}), io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def zipped() -> bytes:
    """A zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.txt", PROSE)
    return content.getvalue()


NO_TEXT: list[tuple[str, bytes, str]] = [
    ("utf-16 with a mark", PROSE.encode("utf-16"), "is UTF-16 and not UTF-8. Convert it: iconv -f utf-16 -t utf-8 .*a.txt > NEW"),
    ("big-endian with a mark", b"\xfe\xff" + PROSE.encode("utf-16-be"), "iconv -f utf-16 -t"),
    ("utf-32 with a mark", PROSE.encode("utf-32"), "is UTF-32 and not UTF-8. Convert it: iconv -f utf-32 -t"),
    ("big utf-32 with a mark", b"\0\0\xfe\xff" + PROSE.encode("utf-32-be"), "iconv -f utf-32 -t"),
    ("utf-16", PROSE.encode("utf-16-le"), "iconv -f utf-16le -t"),
    ("big-endian", PROSE.encode("utf-16-be"), "iconv -f utf-16be -t"),
    ("utf-32", PROSE.encode("utf-32-le"), "iconv -f utf-32le -t"),
    ("big-endian utf-32", PROSE.encode("utf-32-be"), "iconv -f utf-32be -t"),
    ("a byte that is 0", b"sea\0wind", "contains NUL characters .* .* tr -d '\\\\000' < .*a.txt > NEW"),
    ("lfs", POINTER, "is a pointer of Git LFS and not the file itself. Type where it was cloned: git lfs pull"),
    ("annex", ANNEX, "is a pointer of git-annex .* git annex get"),
    ("arrow", arrow(stream=False), r"is an Arrow file, .*open_file"),
    ("arrow stream", arrow(stream=True), r"is an Arrow file, .*open_stream"),
    ("gzip", gzip.compress(PROSE.encode()), "is compressed or an archive. Unpack it first"),
    ("zip", zipped(), "is a zip archive"),
    ("pdf", b"%PDF-1.7\n%\xe2\xe3", "is a PDF. Turn it into text: pdftotext .*a.txt NEW.txt"),
    ("parquet", b"PAR1\x15\x04" + bytes(40), "is a parquet file without its suffix"),
    ("numpy", b"\x93NUMPY\x01\x00" + bytes(100), "is an array of numpy"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "told"), [case[1:] for case in NO_TEXT], ids=[case[0] for case in NO_TEXT])
@pytest.mark.parametrize("in_a_folder", [True, False])
def test_what_is_no_text_is_named_with_what_to_type(
    tmp_path: Path, content: bytes, told: str, in_a_folder: bool
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_text(PROSE)
    with pytest.raises(ConfigurationError, match=f"a.txt (.* )?{told}"):
        find_sources([tmp_path] if in_a_folder else [tmp_path / "a.txt"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("data-00000-of-00001.arrow", b"whatever", "has the name of an Arrow file but is not one"),
        ("a.feather", b"whatever", "has the name of an Arrow file but is not one"),
        ("train.bin", bytes(range(256)) * 9, "is binary and no text: weights, or another program's tokens"),
        ("a.jsonl", POINTER, "is a pointer of Git LFS"),
        ("a.parquet", POINTER, "is a pointer of Git LFS"),
        ("a.jsonl", '{"text": "sea"}\n'.encode("utf-16"), "iconv -f utf-16 -t utf-8 .*a.jsonl"),
        ("a.csv", b"id,text\n1,sea\n", r"is a table: .* --column .* cp .*a.csv .*a.csv.txt"),
        ("a.TSV", b"id\ttext\n1\tsea\n", "is a table"),
    ],
)
def test_a_files_name_tells_what_it_is(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    for given in (tmp_path / name, tmp_path):
        with pytest.raises(ConfigurationError, match=f"{name} (.* )?{told}"):
            find_sources([given])


@pytest.mark.parametrize(
    "text",
    [
        "sea", "él año ß 水 \U0001f6a2", "\ufeffsea", "a\x01b\x1b[0m", "version https://git-lfs", "GGUF is a format of weights",
        "SQLite format 3 is stable", "ARROW1 begins a file", "PAR1 too", "%PDF\n",
    ],
)  # fmt: skip
def test_text_in_utf8_is_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert [source.name for source in find_sources([tmp_path / "a.txt"])] == ["a.txt"]
    assert guess_wide(text.encode()) == ""


def test_a_byte_that_is_0_deep_in_a_text_is_found_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(PROSE.encode() * 10 + b"\0" + PROSE.encode())
    sources = find_sources([tmp_path / "a.txt"])
    spans = [span for spans in plan_pieces(sources, "text", 0.0) for span in spans]
    with pytest.raises(ConfigurationError, match=r"a.txt contains NUL characters"):
        [list(read_chunks(sources, span, "text", 0.0)) for span in spans]


def paste(command: str, folder: Path) -> None:
    """Run a command as it was told, in another folder than that of the file."""
    command = command.replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)


ODD = 'it\'s a "corpus" of $HOME'


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("folder", ["corpus", ODD])
@pytest.mark.parametrize(("names", "given"), [(["a.txt"], "a.txt"), (["data-0.arrow"], "data-0.arrow"), (["train/data-0.arrow", "train/data-1.arrow", "test/data-0.arrow"], "."), (["a.feather"], ".")])  # fmt: skip
def test_after_the_command_for_arrow_the_same_input_is_read(
    tmp_path: Path, stream: bool, folder: str, names: list[str], given: str
) -> None:
    for name in names:
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_bytes(arrow(stream))
    with pytest.raises(ConfigurationError, match=r"is an Arrow file") as error:
        find_sources([tmp_path / folder / given])
    paste(str(error.value).partition("which is: ")[2], tmp_path)
    sources = find_sources([(tmp_path / folder / given).with_suffix(".parquet" if given != "." else "")])
    assert len(sources) == len(names)
    assert parquet.read_table(sources[0].path).to_pydict() == {"text": ["sea", "wind"]}


@pytest.mark.parametrize("content", [PROSE.encode("utf-16"), PROSE.encode("utf-16-le"), b"\0" + PROSE.encode()])
def test_after_the_command_for_a_text_it_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ODD).mkdir()
    (tmp_path / ODD / "a b.txt").write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        find_sources([tmp_path / ODD])
    paste(re.split("Convert it: |remove them: ", str(error.value))[1].partition("; if it is not text")[0], tmp_path)
    assert (tmp_path / "NEW").read_text() == PROSE


@pytest.mark.parametrize(("suffix", "between"), [("csv", ","), ("tsv", "\t"), ("psv", "|")])
def test_the_command_for_a_table_makes_parquet_of_it(tmp_path: Path, suffix: str, between: str) -> None:
    (tmp_path / f"a.{suffix}").write_text(f'id{between}text\n1{between}"sea\nand wind"\n')
    command = explain_table(tmp_path / f"a.{suffix}").partition("Write parquet: ")[2].partition(", and type")[0]
    paste(command, tmp_path)
    assert parquet.read_table(tmp_path / "data.parquet").to_pydict() == {"id": [1], "text": ["sea\nand wind"]}


def write_documents(path: Path, texts: list[str]) -> None:
    """JSON lines or parquet."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        parquet.write_table(pyarrow.table({"text": texts}), path)


def read_all(path: Path, zero_ends: bool) -> list[str]:
    """The texts in a file."""
    sources = find_sources([path])
    spans = [span for spans in plan_pieces(sources, "text", 0.0) for span in spans]
    return [chunk.text for span in spans for chunk in read_chunks(sources, span, "text", 0.0, zero_ends)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("text", "zero_ends", "refused"),
    [
        ("sea\0wind", True, True),
        ("sea\0wind", False, False),  # to other tokenizers it is a character like others
        ("sea wind".encode("utf-16le").decode("latin1"), False, True),
    ],
)
def test_a_document_with_the_character_0_is_refused_where_it_would_end_there(
    tmp_path: Path, suffix: str, text: str, zero_ends: bool, refused: bool
) -> None:
    path = tmp_path / f"a.{suffix}"
    write_documents(path, ["calm", text])
    if not refused:
        assert read_all(path, zero_ends) == ["calm", text]
        return
    with pytest.raises(ConfigurationError, match=r"'text' contains the NUL character .* Remove it: ") as error:
        read_all(path, zero_ends)
    command = str(error.value).partition("Remove it: ")[2]
    paste(command, tmp_path)
    assert read_all(tmp_path / f"NEW.{suffix}", zero_ends) == ["calm", text.replace("\0", "")]


LOCKED = """
import sys
from pathlib import Path
from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.inputs import find_sources

for given in sys.argv[1:]:
    try:
        print(len(find_sources([Path(given)])))
    except ConfigurationError as error:
        print(error)
"""


def test_what_this_user_may_not_read_is_named_and_not_passed_over(tmp_path: Path) -> None:
    for name in (
        "file/a.txt",
        "file/b.txt",
        "folder/a.txt",
        "folder/sub/b.txt",
        "whole/a.txt",
        "disk/a.txt",
        "disk/lost+found/b",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PROSE)
    locked = [tmp_path / name for name in ("file/b.txt", "folder/sub", "whole", "disk/lost+found")]
    for path in locked:
        path.chmod(0)
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []  # root reads all
    given = [str(tmp_path / name) for name in ("file", "folder", "whole", "disk")]
    told = subprocess.run(
        [*drop, sys.executable, "-c", LOCKED, *given], capture_output=True, text=True, check=True
    ).stdout
    for path in locked:
        path.chmod(0o755)
    assert told.splitlines() == [f"{path} cannot be read: Permission denied." for path in locked[:3]] + ["1"]


def test_a_table_among_other_texts_is_read_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,sea\n")
    (tmp_path / "b.md").write_text(PROSE)
    said = described_sources(find_sources([tmp_path]))
    assert said.endswith(f"1 table among them, read as plain text ({tmp_path.name}/a.csv)")


def test_a_list_of_tables_says_that_there_are_more(tmp_path: Path) -> None:
    for number in range(13):
        (tmp_path / f"{number:02}.csv").write_text("id,text\n1,sea\n")
    (tmp_path / "b.md").write_text(PROSE)
    assert described_sources(find_sources([tmp_path])).endswith("/11.csv and 1 more)")


# Checkpoints

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 256}


def whole(folder: Path) -> None:
    """Read all of a checkpoint."""
    read_checkpoint_config(folder, 0.0)
    read_weights(folder)
    open_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", POINTER, "config.json is a pointer of Git LFS"),
        ("model.safetensors", POINTER, "model.safetensors is a pointer of Git LFS"),
        ("model.safetensors", b"<!DOCTYPE html><title>Sign in</title>", "model.safetensors is a web page"),
        ("model.safetensors.index.json", POINTER, "index.json is a pointer of Git LFS"),
    ],
)
def test_a_checkpoint_of_pointers_is_named(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=told):
        whole(tmp_path)


def test_a_tokenizer_that_is_a_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(ConfigurationError, match=r"tokenizer.json is a pointer of Git LFS"):
        open_tokenizer(str(tmp_path))


def base(folder: Path) -> None:
    """An adapter that says whose it is."""
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "openai-community/gpt2"}))


def unknown(folder: Path) -> None:
    """An adapter that does not."""
    (folder / "adapter_config.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "told"), [(base, "of the model openai-community/gpt2 and"), (unknown, "that it was made of")]
)
@pytest.mark.parametrize("with_config", [True, False])
def test_an_adapter_is_no_model(tmp_path: Path, make: Callable[[Path], None], told: str, with_config: bool) -> None:
    make(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ConfigurationError, match=rf"holds an adapter \(LoRA\) .*{told}.*merge_and_unload"):
        whole(tmp_path)
    assert "adapter_config.json" in INCLUDE
