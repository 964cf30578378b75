"""`slipway data prepare`: the same tokens however many processes made them, and however often they were killed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from token_files import documents, write_large_tokenizer, write_lines, write_parquet, write_tokenizer
from waiting import wait_until

from slipway.cli.data import data
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.mistake import ConfigurationError
from slipway.train.text import inputs
from slipway.train.text.inputs import read_parts
from slipway.train.text.piece import Output
from slipway.train.text.preparation import Settings, prepare
from slipway.train.text.token_folder import DTYPES, TokenFolder, read_folder
from slipway.train.text.tokenizer import ByteTokenizer, open_tokenizer

SMALL = 700  # bytes in a piece, so that a test has many


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PIECE", SMALL)


def run(*words: object) -> str:
    """The command's output. Raises LaunchError."""
    result = CliRunner().invoke(data, ["prepare", *map(str, words)])
    if isinstance(result.exception, LaunchError | RuntimeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    """What is said where that is a mistake of the user's."""
    with pytest.raises(LaunchError) as error:
        run(*words)
    assert error.value.code == CONFIGURATION
    return str(error.value)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tokens(folder: TokenFolder, part: str) -> list[int]:
    shards = getattr(folder, part).shards
    return [int(token) for shard in shards for token in np.fromfile(folder.path / shard.name, DTYPES[folder.dtype])]


def texts(path: Path, part: str) -> list[str]:
    """The documents of a part, decoded by another way than training's."""
    folder = read_folder(path)
    tokenizer = open_tokenizer("bytes" if folder.tokenizer["identity"] == "bytes" else str(path))
    found: list[str] = []
    document: list[int] = []
    for token in tokens(folder, part):
        if token == tokenizer.end:
            found.append(tokenizer.decode(document))
            document = []
        else:
            document.append(token)
    assert document == []
    return found


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Documents 0 … 119 in JSON lines, parquet and a folder of text files."""
    every = documents(120)
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(every[80:]):
        (tmp_path / "texts" / f"{number:02}.md").write_text(text)
    lines = write_lines(tmp_path / "a.jsonl", every[:40])
    return [lines, write_parquet(tmp_path / "b.parquet", every[40:80], 9), tmp_path / "texts"]


@pytest.mark.core
@pytest.mark.parametrize("tokenizer", ["bytes", "own.json"])
def test_the_tokens_are_the_same_whatever_the_number_of_processes(
    mixed: list[Path], tmp_path: Path, tokenizer: str
) -> None:
    if tokenizer != "bytes":
        tokenizer = str(write_tokenizer(tmp_path / tokenizer))
    for processes in (1, 3):
        run(*mixed, "--out", tmp_path / f"by-{processes}", "--tokenizer", tokenizer, "--processes", processes,
            "--validation", 0.2, "--shard-tokens", 1000)  # fmt: skip
    made = files(tmp_path / "by-1")
    assert made == files(tmp_path / "by-3")
    found = [*texts(tmp_path / "by-1", "train"), *texts(tmp_path / "by-1", "validation")]
    # The text file at the border of both parts is cut in two.
    [head, tail] = [text for text in found if text not in documents(120)]
    assert sorted([head + tail, *set(found) - {head, tail}]) == sorted(documents(120))
    folder = read_folder(tmp_path / "by-1")
    assert len(folder.train.shards) > 1
    assert [shard.tokens for shard in folder.train.shards[:-1]] == [1000] * (len(folder.train.shards) - 1)
    for shard in folder.shards:
        assert hashlib.sha256(made[shard.name]).hexdigest() == shard.sha256
        assert np.frombuffer(made[shard.name], DTYPES[folder.dtype]).max() == shard.largest
    assert folder.train.documents == len(texts(tmp_path / "by-1", "train"))
    assert folder.train.bytes == sum(len(text.encode()) for text in texts(tmp_path / "by-1", "train"))


def test_documents_are_divided_by_their_text_alone(tmp_path: Path) -> None:
    every = documents(200)
    run(write_lines(tmp_path / "a.jsonl", every), "--out", tmp_path / "a", "--validation", 0.3)
    run(write_parquet(tmp_path / "b.parquet", every[::-1], 50), "--out", tmp_path / "b", "--validation", 0.3)
    assert set(texts(tmp_path / "a", "validation")) == set(texts(tmp_path / "b", "validation"))
    assert 30 < len(texts(tmp_path / "a", "validation")) < 90


def test_of_one_text_file_the_end_is_for_validation(tmp_path: Path) -> None:
    lines = [f"line {number} of a long text\n" for number in range(400)]
    (tmp_path / "book.txt").write_text("\ufeff" + "".join(lines))
    run(tmp_path / "book.txt", "--out", tmp_path / "out", "--validation", 0.1)
    [train], [validation] = texts(tmp_path / "out", "train"), texts(tmp_path / "out", "validation")
    assert train + validation == "".join(lines)
    assert validation.startswith("line ")
    assert len(validation) == pytest.approx(0.1 * len(train + validation), rel=0.05)


ARRAY, LINES = json.dumps([{"text": "one"}, {"text": "two"}], indent=1), '{"text": "one"}\n' * 300


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", ARRAY, "a.json"),
        ("a.txt", LINES, "a.jsonl"),
        ("a.txt", json.dumps([{"text": "x" * 10**6}]), "a.json"),  # of which only the beginning is looked at
        ("a.json", ARRAY, ""),
        ("a.txt", '["a poem"]\n' * 9, ""),
        ("a.txt", '{"so he spoke"}\n' * 9, ""),
    ],
)
def test_json_that_is_read_as_text_is_named_with_the_name_that_it_should_have(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content)
    said = run(tmp_path / name, "--out", tmp_path / "out")
    assert said.count("note: JSON is read as plain text") == bool(told)
    assert not told or f"a.txt. To train on the text in it alone, type mv {tmp_path}/a.txt {tmp_path}/{told}\n" in said


def test_json_beside_text_is_named(tmp_path: Path) -> None:
    for name, content in (("a.txt", "text\n" * 9), ("b.json", ARRAY)):
        (tmp_path / name).write_text(content)
    assert "b.json. To train on the text in it alone, give files of JSON alone\n" in run(
        tmp_path, "--out", tmp_path / "out"
    )


def test_one_document_is_no_several(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    said = run(tmp_path / "a.txt", "--out", tmp_path / "out")
    assert "training: 1 document, " in said, said


def test_a_text_without_lines_is_cut_at_words_or_characters(tmp_path: Path) -> None:
    for name, text in (("words.txt", "sea wind " * 1000), ("chars.txt", "水" * 5000)):
        (tmp_path / name).write_text(text)
        run(tmp_path / name, "--out", tmp_path / f"{name}.tokens", "--validation", 0.5)
        parts = [texts(tmp_path / f"{name}.tokens", part)[0] for part in ("train", "validation")]
        assert "".join(parts) == text
        assert len(parts[0]) == pytest.approx(len(parts[1]), rel=0.01)


def test_files_named_after_their_part_go_there(tmp_path: Path) -> None:
    for name, text in (("train-0", "one"), ("train-1", "two"), ("validation-0", "three"), ("test-0", "four")):
        write_lines(tmp_path / f"{name}.jsonl", [text])
    said = run(*sorted(tmp_path.glob("*.jsonl")), "--out", tmp_path / "out")
    assert "2 for training and 1 for validation (validation-0.jsonl), 1 for tests left out" in said
    assert (texts(tmp_path / "out", "train"), texts(tmp_path / "out", "validation")) == (["one", "two"], ["three"])
    run(tmp_path / "test-0.jsonl", "--out", tmp_path / "other", "--validation", 0)
    assert texts(tmp_path / "other", "train") == ["four"]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["a-train.txt", "a-valid.txt"], ["train", "validation"]),
        (["data/train/0.jsonl", "data/test/0.jsonl"], ["train", "validation"]),
        (["training.txt", "dev.txt", "test.txt", "more.txt"], ["train", "validation", "neither", "train"]),
        (["tests/a.py", "src/b.py"], [None, None]),
        (["train.py", "test_loop.py", "eval.ipynb"], [None, None, None]),
        (["train/a.py", "valid/test.py"], ["train", "validation"]),
        (["restrain.txt", "contest.txt", "invalid.txt"], [None, None, None]),
        (["how to train a dog.txt", "a test of time.txt", "history of wool.txt"], [None, None, None]),
        (["how-to-train-a-dog.txt", "a_test_of_time.txt"], [None, None]),
        (["train/how to test a dog.txt", "val/a train ride.txt"], ["train", "validation"]),
        (["c/train-00000-of-00012.parquet", "c/test-00000-of-00001.parquet"], ["train", "validation"]),
        (["c4-train.00000-of-01024.jsonl", "c4-validation.00000-of-00008.jsonl"], ["train", "validation"]),
        (["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"], ["train", "validation", "neither"]),
        (["train_part_3.txt", "dev_shard-1.txt"], ["train", "validation"]),
        (["my-train-set/a.txt", "my-val/a.txt"], [None, None]),
        (["Train/a.txt", "EVAL/a.txt"], ["train", "validation"]),
    ],
)
def test_names_tell_parts_only_where_some_say_training(names: list[str], parts: list[str | None]) -> None:
    sources = [inputs.TextSource(name, name, inputs.TEXT, 1, 0) for name in names]
    assert [source.part for source in read_parts(sources)] == parts


@pytest.mark.pull
@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet"])
def test_names_that_are_not_utf8_are_read_and_what_systems_left_is_said(tmp_path: Path, suffix: str) -> None:
    corpus = tmp_path / "corpus"
    for name in ("caf\udce9", "sea"):
        file = tmp_path / f"made.{suffix}"
        if suffix == "txt":
            file.write_text("\n".join(documents(20)))
        else:
            (write_lines if suffix == "jsonl" else partial(write_parquet, rows=9))(file, documents(20))
        corpus.mkdir(exist_ok=True)
        file.rename(corpus / f"{name}.{suffix}")
    for name in (f"._sea.{suffix}", ".DS_Store", "Thumbs.db", f"__MACOSX/sea.{suffix}"):
        (corpus / name).parent.mkdir(exist_ok=True)
        (corpus / name).write_bytes(b"\xff\xfe\x00")
    said = run(corpus, "--out", tmp_path / "out", "--validation", 0.5)
    assert f"2 files ({'text' if suffix == 'txt' else 'JSON lines' if suffix == 'jsonl' else suffix})" in said
    assert "4 left out: hidden" in said
    folder = read_folder(tmp_path / "out")
    assert folder.train.bytes + folder.validation.bytes == 2 * len(
        ("\n" if suffix == "txt" else "").join(documents(20)).encode()
    )


@pytest.mark.pull
def test_a_mistake_in_a_file_whose_name_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.txt").write_bytes(b"sea \xe9")
    said = refused(tmp_path / "caf\udce9.txt", "--out", tmp_path / "out")
    assert r"caf\xe9.txt byte 4 is not UTF-8" in said
    said.encode()


def test_of_a_folder_files_of_one_kind_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    write_parquet(folder / "data" / "0.parquet", ["sea"], 1)
    for name in ("README.md", "config.json", ".git/HEAD"):
        (folder / name).write_text("{}")
    assert [source.name for source in inputs.find_sources([folder])] == ["repo/data/0.parquet"]
    (folder / "data" / "0.parquet").unlink()
    assert {source.name for source in inputs.find_sources([folder])} == {"repo/README.md", "repo/config.json"}
    assert [source.kind for source in inputs.find_sources([folder / "config.json"])] == [inputs.LINES]


def link(place: Path, target: str) -> None:
    """A link at a place, with the folders above it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("links", "read", "left_out"),
    [
        ({"more": "../outside"}, ["a.txt", "more/b.txt", "sub/c.txt"], 0),
        ({"b.txt": "../outside/b.txt"}, ["a.txt", "b.txt", "sub/c.txt"], 0),
        ({"one": "../outside", "two": "../outside"}, ["a.txt", "one/b.txt", "sub/c.txt"], 1),
        ({"again": "sub"}, ["a.txt", "sub/c.txt"], 1),
        ({"sub/circle": ".."}, ["a.txt", "sub/c.txt"], 1),
        ({"above": "../.."}, ["a.txt", "sub/c.txt"], 1),
        ({"self": "self"}, ["a.txt", "sub/c.txt"], 1),
        ({"gone": "../nothing"}, ["a.txt", "sub/c.txt"], 1),
        ({"more": "../outside", "../outside/back": "../corpus"}, ["a.txt", "more/b.txt", "sub/c.txt"], 1),
        ({"more": "../outside", "../outside/further": "../further"}, ["a.txt", "more/b.txt", "more/further/d.txt", "sub/c.txt"], 0),
        ({".hidden": "../outside"}, ["a.txt", "sub/c.txt"], 1),
    ],
)  # fmt: skip
def test_links_in_a_folder_are_followed_once_and_the_others_are_counted(
    tmp_path: Path, links: dict[str, str], read: list[str], left_out: int
) -> None:
    corpus = tmp_path / "corpus"
    for name in ("corpus/a.txt", "corpus/sub/c.txt", "outside/b.txt", "further/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("sea\n")
    for place, target in links.items():
        link(corpus / place, target)
    sources = inputs.find_sources([corpus])
    assert [source.name for source in sources] == [f"corpus/{name}" for name in read]
    assert inputs.count_files([corpus]) - len(sources) == left_out
    linked = tmp_path / "linked"
    linked.symlink_to(corpus)
    assert len(inputs.find_sources([linked])) == len(read)


# With HELD_AFTER in its environment, it makes so many pieces and waits to be killed.
PROGRAM = """
import itertools, os, threading
from slipway.train.text import inputs, piece
inputs.PIECE = {piece}
make, numbers, held_after = piece.PieceWorker.make, itertools.count(), int(os.environ.get("HELD_AFTER", 1_000_000))
def make_or_wait(self, number, tick):
    if next(numbers) >= held_after:
        threading.Event().wait()
    make(self, number, tick)
piece.PieceWorker.make = make_or_wait
from slipway.cli.cli import main
main()
"""


def start(*words: object, **more: object) -> subprocess.Popen[str]:
    """The command in a process of its own, with pieces that are small."""
    command = [sys.executable, "-c", PROGRAM.format(piece=SMALL), "data", "prepare", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload,no-any-return]


def working_on(folder: Path) -> list[str]:
    """The processes that have a folder among their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # it ended meanwhile
            continue
    return found


def test_what_was_killed_goes_on_with_the_finished_pieces(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", documents(1200))
    tokenizer = write_tokenizer(tmp_path / "own.json")
    run(lines, "--out", tmp_path / "whole", "--tokenizer", tokenizer)
    words = (lines, "--out", tmp_path / "out", "--tokenizer", tokenizer, "--processes", 2)
    work = tmp_path / "out" / ".preparation"
    process = start(*words, env={**os.environ, "HELD_AFTER": "6"})
    wait_until(lambda: len(list(work.glob("*.json"))) >= 6 or process.poll() is not None, "six pieces")
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    wait_until(lambda: not working_on(work), "its workers to end by themselves")
    pieces = sorted(work.glob("*.train.bin"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(ConfigurationError, match="holds no manifest"):
        read_folder(tmp_path / "out")
    pieces[0].write_bytes(b"\0" + pieces[0].read_bytes()[1:])
    said = run(*words)
    records = [int(word) for word in said.split("resuming: ")[1].split(" pieces")[0].split(" of ")]
    assert 0 < records[0] < records[1]
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", documents(600))
    run(lines, "--out", tmp_path / "whole")
    words = (lines, "--out", tmp_path / "out")
    # Shards are larger than what a file may have here; pieces are not.
    process = start(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14)))
    output, _ = process.communicate()
    assert process.returncode == CONFIGURATION, output
    assert "the same command resumes once that is fixed" in output
    assert [name for name in files(tmp_path / "out") if not name.startswith(".")] == []
    assert "resuming" in run(*words)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_finished_folder_is_kept_and_never_overwritten(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", documents(30))
    words = (lines, "--out", tmp_path / "out", "--validation", 0.2)
    run(*words)
    before = files(tmp_path / "out")
    assert "was finished before" in run(*words)
    other = write_tokenizer(tmp_path / "own.json")
    for more, named in (
        (("--validation", 0.3), "--validation was 0.2"),
        (("--shard-tokens", 10), "--shard-tokens was 268435456"),
        (("--dtype", "uint32"), "--dtype was uint16"),
        (("--tokenizer", other), "the tokenizer was bytes"),
    ):
        assert f"made with other settings: {named}." in refused(*words, *more)
    write_lines(lines, documents(31))
    assert "the input was 1 file." in refused(*words)
    assert files(tmp_path / "out") == before


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("mine")
    assert "is there already and holds no tokens" in refused(
        write_lines(tmp_path / "a.jsonl", ["sea"]), "--out", tmp_path / "home"
    )
    assert files(tmp_path / "home") == {"letter.txt": b"mine"}


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"txt": "x", "id": 1}\n', "a.jsonl:1 has no column 'text'. Its columns are: txt, id. Type --column NAME."),
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', "a.jsonl:3 is no JSON"),
        ("a.jsonl", '{"text": "x"}\n[1]\n', "a.jsonl:2 does not contain an object, such as {"),
        ("a.jsonl", '{"text": 7}\n', "a.jsonl:1 'text' is 7, not text; type another --column."),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xe9"}\n', "a.jsonl:2 is not UTF-8: byte 0xe9."),
        ("a.jsonl", '{"text": ""}\n{"text": null}\n', "The input is empty; there is no text in it."),
        ("a.txt", b"sea\nwind \xe9\n", "a.txt byte 9 is not UTF-8 (0xe9). If it is text, convert it"),
        ("a.txt", "", "a.txt is empty; there is no text in it."),
        ("a.txt.gz", b"\x1f\x8b", "a.txt.gz is compressed or an archive. Unpack it first."),
        ("a.parquet", b"PAR1", "a.parquet is no parquet file that can be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    assert said in refused(written(tmp_path / name, content), "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    "form",
    [
        json.dumps,
        partial(json.dumps, indent=2, ensure_ascii=False),
        lambda every: "\r\n" + json.dumps(every, indent="\t").replace("\n", "\r\n") + "\r\n",
        lambda every: "\n".join(json.dumps(each, indent=1) for each in every),
        lambda every: json.dumps(every[:20]) + "\n" + json.dumps(every[20:]) + "\n",
    ],
)
def test_a_json_array_gives_the_same_texts_as_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mark: str, form: Callable[[list[object]], str]
) -> None:
    every = [*documents(40), 'a "quote" \\ and {[\n]} ñ \U0001f40b', "x" * 5000]
    monkeypatch.setattr(inputs, "CHUNK", 97)  # so that objects and characters are cut
    values = [{"id": number, "text": text, "more": [{"text": "no"}]} for number, text in enumerate(every)]
    [source] = inputs.find_sources([written(tmp_path / name, mark + form(values))])
    assert texts_in(source) == every
    assert source.kind == inputs.JSON
    [lines] = inputs.find_sources([write_lines(tmp_path / "lines.jsonl", every)])
    assert (lines.kind, texts_in(lines)) == (inputs.LINES, every)


def texts_in(source: inputs.TextSource) -> list[str]:
    """The documents in a file, as the tokenizer gets them."""
    spans = [span for piece in inputs.plan_pieces([source], "text", 0.5) for span in piece]
    return [chunk.text for span in spans for chunk in inputs.read_chunks([source], span, "text", 0.5, zero_ends=True)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[\n {"text": "x"},\n {"text": "y"}\n', "a.json:4 is no JSON: it ends within an array."),
        ('[{"text": "x"},\n {"text": "y', "a.json:2 is no JSON: Unterminated string starting at."),
        ('[{"text": "x"},\n {"text": y}]' + " " * 20, "a.json:2 is no JSON: Expecting value. It has to be an array of"),
        ('[{"text": "x"},\n "y"]', 'a.json:2 does not contain an object, such as {"text": …}.'),
        ('{\n "data": [{"text": "x"}]\n}\n', "a.json:1 has no column 'text'. Its columns are: data. Type --column NAME."),
        ('[{"text": 7}]', "a.json:1 'text' is 7, not text; type another --column."),
        ('[{"text": "x"}]\n}', "a.json:2 is no JSON: Expecting value."),
        (b'[{"text": "\xe9"}]', "a.json is not UTF-8 (0xe9). If it is text, convert it"),
        ('[{"text": "\\u0000"}]', "contains the NUL character"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_read_is_told_with_its_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        texts_in(*inputs.find_sources([written(tmp_path / "a.json", content)]))
    assert said in str(error.value)


def test_an_error_deep_in_a_file_names_its_line(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", documents(300))
    with lines.open("a") as file:
        file.write("oops\n")
    assert "a.jsonl:301 is no JSON" in refused(lines, "--out", tmp_path / "out", "--processes", 3)
    write_lines(lines, documents(300))  # mended
    run(lines, "--out", tmp_path / "out")
    assert len(texts(tmp_path / "out", "train") + texts(tmp_path / "out", "validation")) == 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("b.parquet", "--column", "body"), "b.parquet has no column 'body'. Its columns are: id, text. Type --column NAME."),
        (("b.parquet", "--column", "id"), "column 'id' holds int64, not text; type another --column."),
        (("c.parquet",), "There is no c.parquet in "),
        (("b.parquet", "--tokenizer", "large.json", "--dtype", "uint16"), "--dtype uint16 holds 65,536 different tokens"),
        (("b.parquet", "--tokenizer", "lage.json"), "Did you mean large.json?"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "b.parquet", ["sea"], 1)
    write_large_tokenizer(tmp_path / "large.json")
    assert said in refused(*words, "--out", "out")
    assert not (tmp_path / "out").exists()


def test_large_tokens_take_four_bytes(tmp_path: Path) -> None:
    write_large_tokenizer(tmp_path / "large.json")
    lines = write_lines(tmp_path / "a.jsonl", ["sea <last>", "wind"])
    run(lines, "--out", tmp_path / "out", "--tokenizer", tmp_path / "large.json", "--validation", 0)
    folder = read_folder(tmp_path / "out")
    assert (folder.dtype, folder.train.shards[0].largest) == ("uint32", 70_000)
    assert 70_000 in tokens(folder, "train")


def test_half_a_character_that_json_can_spell_becomes_a_question_mark(tmp_path: Path) -> None:
    run(written(tmp_path / "a.jsonl", '{"text": "sea \\ud800 wind"}\n'), "--out", tmp_path / "out", "--validation", 0)
    assert texts(tmp_path / "out", "train") == ["sea ? wind"]


def test_a_worker_that_is_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slipway.train.text.piece.sys.executable", written(tmp_path / "python", "#!/bin/sh\nkill -9 $$\n")
    )
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"killed by signal 9. Where memory is short"):
        prepare(
            [write_lines(tmp_path / "a.jsonl", ["sea"])],
            tmp_path / "out",
            open_tokenizer("bytes"),
            Settings(),
            1,
            print,
        )


def test_preparing_needs_no_torch(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", ["sea", "wind"])
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
        f"sys.argv = ['slipway', 'data', 'prepare', {str(lines)!r}, '--out', {str(tmp_path / 'out')!r}]; "
        "from slipway.cli.cli import main; main()"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    assert shown.stdout.splitlines()[-1] == "False"


def test_what_is_prepared_goes_through_no_link_that_others_put_there(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.preparation").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigurationError, match="holds no tokens"):
        prepare(
            [write_lines(tmp_path / "a.jsonl", documents(2))], tmp_path / "out", ByteTokenizer(), Settings(), 1, print
        )
    assert not [*(tmp_path / "victim").iterdir()]
    (tmp_path / f".piece.bin.{os.getpid()}").symlink_to(tmp_path / "victim/file")
    Output(tmp_path / "piece.bin", "uint16").finish()
    assert (tmp_path / "piece.bin").is_file()
    assert not (tmp_path / "victim/file").exists()
