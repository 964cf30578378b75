"""Training on text of the user's own: files, prepared tokens, data sets of the Hub."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import HubServer
from hypothesis import given
from hypothesis import strategies as st
from token_files import documents, write_lines, write_parquet, write_tokenizer
from training_jobs import Run, worker_environment

from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.flops import flops_per_token
from slipway.train.models.gpt import Gpt, GptConfig
from slipway.train.text.corpus import Corpus, open_corpus
from slipway.train.text.files import Text
from slipway.train.text.language import cut_samples, sample
from slipway.train.text.preparation import Settings, prepare
from slipway.train.text.token_folder import Stream
from slipway.train.text.tokenizer import open_tokenizer
from slipway.train.worker.context import Context
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import read_place
from slipway.train.worker.prepared import MAKING

Start = Callable[..., Run]
PARTS = ("train", "validation")
MODEL = ("--layers", 1, "--heads", 2, "--embed", 16, "--context", 16, "--batch-size", 4, "--sample-tokens", 8)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "own.json")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens in several shards per part."""
    scratch = tmp_path_factory.mktemp("prepared")
    lines, own = write_lines(scratch / "a.jsonl", documents(300)), write_tokenizer(scratch / "own.json")
    settings = Settings(validation=0.2, shard_tokens=700)
    prepare([lines], scratch / "tokens", open_tokenizer(str(own)), settings, 2, print)
    return scratch / "tokens"


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(prepared, tmp_path / "tokens"))


def make_context(tmp_path: Path) -> Context:
    place = read_place(worker_environment(tmp_path / "own", "none"))
    return Context(place, torch.device("cpu"), None, Heartbeat(tmp_path / "own" / "heartbeat.json"))


def open_folder(folder: Path, tmp_path: Path) -> Corpus:
    return open_corpus(f"tokens:{folder}", None, make_context(tmp_path), 16)


def message(run: Run) -> str:
    """What the first worker said at its end, which must be a mistake of configuration."""
    assert (run.exit_code, run.outcomes[0]["outcome"]) == (1, "configuration"), run.outcomes
    return str(run.outcomes[0]["message"])


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 12), st.data())
def test_a_window_is_the_same_wherever_the_files_are_cut(cuts: list[int], length: int, more: st.DataObject) -> None:
    whole = np.arange(1000, 1000 + sum(cuts) + length, dtype=np.uint16)
    borders = np.cumsum(cuts)
    starts = more.draw(st.lists(st.integers(0, sum(cuts)), max_size=5))
    windows = Stream(np.split(whole, borders)).windows(np.array(starts, np.int64), length)
    assert windows.dtype == np.int64
    assert windows.tolist() == [whole[start : start + length].tolist() for start in starts]


def test_every_token_is_trained_on_once_in_an_epoch(folder: Path, tmp_path: Path) -> None:
    corpus = open_folder(folder, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["train"]["shards"]) > 3
    stored = [np.fromfile(folder / shard["name"], "<u2") for shard in manifest["train"]["shards"]]
    whole = torch.from_numpy(np.concatenate(stored).astype(np.int64))
    samples = cut_samples(corpus, 16, 10)
    indices = torch.arange(samples.count)
    inputs, targets = samples.batch(indices, indices)
    assert torch.equal(inputs.flatten(), whole[: samples.count * 16])
    assert torch.equal(targets.flatten(), whole[1 : samples.count * 16 + 1])
    assert len(whole) - samples.count * 16 <= 16


@pytest.mark.parametrize("length", [16, 149])
@pytest.mark.parametrize("cut", ["\n", " ", ""], ids=["lines", "words", "one word"])
def test_a_text_of_two_samples_trains_and_is_judged_by_the_last(tmp_path: Path, length: int, cut: str) -> None:
    book = tmp_path / "book.txt"
    book.write_text((("ship" + cut) * 300)[:300])  # a hundredth is three bytes, or where it may not be cut none
    corpus = open_corpus(f"file:{book}", None, make_context(tmp_path), length)
    parts = corpus.train, corpus.validation
    assert len(parts[1]) == length + 1
    held = [part.windows(torch.tensor([0]), len(part)).flatten().tolist() for part in parts]
    assert bytes(token for part in held for token in part if token) == book.read_bytes(), "each byte is in one part"
    assert corpus.bytes_per_token == pytest.approx(1, abs=0.01)
    samples = cut_samples(corpus, length, 10)
    assert (samples.count, samples.validation.samples) == ((len(parts[0]) - 1) // length, 1)
    another = open_corpus(f"file:{book}", None, make_context(tmp_path), length - 1)
    assert another.identity != corpus.identity, "a run does not go on with another split"


def test_where_a_hundredth_is_enough_it_is_what_is_held_out(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n".join(documents(300)))
    corpus = open_corpus(f"file:{book}", None, make_context(tmp_path), 16)
    [folder] = (tmp_path / "cache").glob("**/tokens/*")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (len(corpus.train), len(corpus.validation)) == tuple(manifest[part]["tokens"] for part in PARTS)
    assert 0.005 < manifest["validation"]["bytes"] / book.stat().st_size <= 0.01
    assert "up to" not in corpus.identity


def test_what_somebody_held_out_stays_as_it_is(tmp_path: Path) -> None:
    for name, text in (("train.txt", "ship " * 300), ("valid.txt", "sea")):
        (tmp_path / name).write_text(text)
    named = tmp_path / "named"
    prepare([tmp_path / "train.txt", tmp_path / "valid.txt"], named, open_tokenizer("bytes"), Settings(), 1, print)
    shared = tmp_path / "shared"
    settings = Settings(validation=0.01)
    prepare([write_lines(tmp_path / "a.jsonl", documents(40))], shared, open_tokenizer("bytes"), settings, 1, print)
    for folder in (named, shared):
        with pytest.raises(ConfigurationError, match=r"--context 500 is longer than|no tokens for validation"):
            cut_samples(open_corpus(f"tokens:{folder}", None, make_context(tmp_path), 500), 500, 10)


def test_shards_are_mapped_and_not_read_whole(folder: Path, tmp_path: Path) -> None:
    corpus = open_folder(folder, tmp_path)
    arrays = corpus.train.stream._arrays  # type: ignore[attr-defined]
    assert {type(array) for array in arrays} == {np.memmap}
    assert not any(array.flags.owndata for array in arrays)


def test_two_processes_on_tokens_resume_where_they_stopped(folder: Path, job: Start) -> None:
    words = ("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--eval-samples", 7)
    whole = job(*words, "--steps", 8, folders=("whole",))
    first = job(*words, "--steps", 8, "--save-every", 4, folders=("parts",), faults={}, **{"kill": [1, 6]})
    assert whole.exit_code == 0, whole.output
    assert first.exit_code != 0
    again = job(*words, "--steps", 8, folders=("parts",), resume="auto")
    assert again.exit_code == 0, again.output
    assert "resuming from" in again.output
    one, other = whole.tensors(), again.tensors()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.metrics[-1]["val_loss"] == whole.metrics[-1]["val_loss"]
    assert (again.folder / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_bits_per_byte_count_bytes_and_perplexity_tokens(folder: Path, train: Start) -> None:
    run = train("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--steps", 2)
    last, manifest = run.metrics[-1], json.loads((folder / "manifest.json").read_text())["validation"]
    assert last["perplexity"] == pytest.approx(math.exp(last["val_loss"]))
    bytes_per_token = manifest["bytes"] / manifest["tokens"]
    assert bytes_per_token > 1.5
    assert last["bits_per_byte"] == pytest.approx(last["val_loss"] / math.log(2) / bytes_per_token)


@pytest.mark.parametrize("kind", ["text", "folder", "lines", "parquet"])
def test_files_are_prepared_once(kind: str, train: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    every = documents(400)
    if kind == "lines":
        path = write_lines(tmp_path / "a.jsonl", every, "body")
    elif kind == "parquet":
        path = write_parquet(tmp_path / "a.parquet", every, 100)
    else:
        path = tmp_path / ("book.txt" if kind == "text" else "books")
        if kind == "folder":
            path.mkdir()
        for number in range(1 if kind == "text" else 3):
            (path / f"{number}.txt" if kind == "folder" else path).write_text("\n".join(every))
    words = (
        "gpt",
        *MODEL,
        "--dataset",
        f"file:{path}",
        "--steps",
        1,
        "--column",
        "body" if kind == "lines" else "text",
    )
    first = train(*words)
    assert first.exit_code == 0, capfd.readouterr()
    assert (
        f"{path.stat().st_size if kind != 'folder' else 3 * len(chr(10).join(every).encode()):,} bytes"
        in capfd.readouterr().out
    )
    again = train(*words, folder="again")
    assert f"({kind}" not in capfd.readouterr().out
    assert first.metrics[-1]["val_loss"] == again.metrics[-1]["val_loss"]
    assert len(list((tmp_path / "cache" / "slipway" / "tokens").iterdir())) == 1


def test_other_content_of_a_file_is_prepared_anew(train: Start, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    states = []
    for number, text in enumerate(("sea and wind\n" * 300, "rain or wood\n" * 300)):
        path.write_text(text)
        os.utime(path, (number, number))
        run = train("gpt", *MODEL, "--dataset", f"file:{path}", "--steps", 1, folder=f"run-{number}")
        assert run.exit_code == 0
        states.append(json.loads(next(run.folder.glob("snapshots/*/state.json")).read_text())["data"])
    assert states[0] != states[1]
    assert all(state.startswith("file ") and len(state) == 69 for state in states)


def test_two_processes_prepare_a_file_with_a_tokenizer_together(job: Start, tmp_path: Path, tokenizer: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", documents(400))
    run = job("gpt", *MODEL, "--dataset", f"file:{path}", "--tokenizer", tokenizer, "--steps", 2)
    assert run.exit_code == 0, run.output
    assert run.output.count("1 file (JSON lines)") == 1
    assert json.loads(next(run.folder.glob("snapshots/*/state.json")).read_text())["model"]["vocab_size"] == 300


def test_the_standard_library_is_read_with_a_tokenizer_as_well(
    train: Start, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(documents(300)).encode()
    monkeypatch.setattr("slipway.train.text.corpus.read_stdlib", lambda: Text(lines + b"\xe9", lines[:1000], "hash"))
    run = train("gpt", *MODEL, "--tokenizer", tokenizer, "--steps", 1, "--eval-samples", 4)
    assert run.exit_code == 0
    state = json.loads(next(run.folder.glob("snapshots/*/state.json")).read_text())
    assert state["model"]["tokenizer"] == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert state["data"].startswith("stdlib ")
    assert run.metrics[-1]["perplexity"] > 100


def test_a_data_set_of_the_hub_is_fetched_and_prepared(
    hub: HubServer, train: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {
        f"small/{part}-00000-of-00001.parquet": write_parquet(tmp_path / "a.parquet", every, 50).read_bytes()
        for part, every in (("train", documents(200)), ("validation", documents(260)[200:]), ("test", ["sea"]))
    }
    commit = hub.add("acme/text", {**files, "large/train.parquet": b"rows", "README.md": b"# Text"}, kind="dataset")
    run = train("gpt", *MODEL, "--dataset", f"hub:acme/text/small@{commit}", "--steps", 1)
    shown = capfd.readouterr()
    assert run.exit_code == 0, shown
    judged = "small/validation-00000-of-00001.parquet"
    assert f"1 for training and 1 for validation ({judged}), 1 for tests left out" in shown.out
    assert not any("large" in request for request in hub.requests if request.startswith("GET") and "resolve" in request)


def test_a_tokenizer_of_the_hub_is_fetched(hub: HubServer, train: Start, tokenizer: Path) -> None:
    book = tokenizer.with_name("book.txt")
    hub.add("acme/gpt", {"tokenizer.json": tokenizer.read_bytes(), "model.safetensors": b"large"})
    book.write_text("\n".join(documents(300)))
    run = train("gpt", *MODEL, "--tokenizer", "acme/gpt", "--dataset", f"file:{book}", "--steps", 1)
    assert run.exit_code == 0
    assert (run.folder / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert not any("/cdn/" in request for request in hub.requests)


def spoil(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (folder / name).write_bytes(change((folder / name).read_bytes()))


def drop_manifest_part(content: bytes) -> bytes:
    return content.replace(b'"dtype"', b'"type"')


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train-00001.bin", lambda content: content[:-2], r"train-00001.bin has 1,398 bytes instead of 1,400; copy"),
        ("train-00001.bin", lambda content: b"\0\0" + content[2:], r"^train-00001.bin in .* changed since they were made"),
        ("tokenizer.json", lambda content: content + b" ", r"is not the tokenizer that made these tokens"),
        ("manifest.json", lambda content: content[:100], r"manifest.json cannot be read"),
        ("manifest.json", drop_manifest_part, r"manifest.json cannot be read \(KeyError"),
        ("manifest.json", lambda content: content.replace(b'"format": 1', b'"format": 2'), r"has format 2"),
        ("manifest.json", lambda content: content.replace(b"train-00001", b"../train-00001"), r"not in its folder"),
        ("manifest.json", lambda content: content.replace(b'"size": 300', b'"size": 40'), r"holds the token \d+; its"),
    ],
)  # fmt: skip
def test_damaged_tokens_are_refused_before_training(
    folder: Path, train: Start, name: str, change: Callable[[bytes], bytes], said: str
) -> None:
    spoil(folder, name, change)
    run = train("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--steps", 1)
    assert re.search(said, message(run)), message(run)


def test_shards_are_compared_with_their_checksums_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(folder, tmp_path)
    read: list[Path] = []
    monkeypatch.setattr("slipway.train.hub.fetch.hash_file", lambda path, tick, git: read.append(path))
    open_folder(folder, tmp_path)
    assert read == []
    spoil(folder, "train-00000.bin", lambda content: b"\0\0" + content[2:])
    with pytest.raises(ConfigurationError, match=r"^train-00000.bin in"):
        open_folder(folder, tmp_path)
    assert read == [folder / "train-00000.bin"]


def test_a_cache_that_cannot_be_written_costs_only_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(open_folder(folder, tmp_path).train) > 0


def test_a_token_out_of_range_never_reaches_the_model(folder: Path, tmp_path: Path) -> None:
    corpus = open_folder(folder, tmp_path)
    np.memmap(folder / "train-00000.bin", "<u2", "r+")[3] = 300
    samples = cut_samples(corpus, 16, 10)
    with pytest.raises(ConfigurationError, match=r"holds the token 300; its tokenizer has 300"):
        samples.batch(torch.tensor([0]), torch.tensor([0]))
    samples.batch(torch.tensor([1]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokenizer", "bytes"), "holds tokens of own.json, not of bytes. Leave out --tokenizer"),
        (("--vocab-size", 299), "--vocab-size 299 is less than the 300 tokens of the tokenizer"),
        (("--context", 5000), "--context 5000 is longer than the text, which has"),
    ],
)
def test_what_does_not_fit_the_tokens_is_refused(
    folder: Path, train: Start, words: tuple[object, ...], said: str
) -> None:
    run = train("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--steps", 1, *words)
    assert said in message(run)


def test_a_vocabulary_may_be_larger_than_the_tokenizers(folder: Path, train: Start) -> None:
    run = train("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--steps", 1, "--vocab-size", 320)
    assert run.tensors()["model/wte.weight"].shape == (320, 16)
    assert sample(run.folder, "sea", 30, 1.0, 0).startswith("sea")


def test_tokens_without_validation_are_refused(tmp_path: Path, train: Start) -> None:
    prepare(
        [write_lines(tmp_path / "a.jsonl", documents(30))], tmp_path / "all", open_tokenizer("bytes"),
        Settings(validation=0.0), 1, print,
    )  # fmt: skip
    run = train("gpt", *MODEL, "--dataset", f"tokens:{tmp_path / 'all'}", "--steps", 1)
    assert "has no tokens for validation. Prepare the text again with a larger --validation." in message(run)


def test_text_is_written_in_the_runs_own_tokens(folder: Path, train: Start) -> None:
    run = train("gpt", *MODEL, "--dataset", f"tokens:{folder}", "--steps", 200, "--lr", 0.02)
    text = sample(run.folder, "the ship lies", 20, 0.0, 0)
    assert text.startswith("the ship lies on the slipway")
    assert "<|endoftext|>" not in sample(run.folder, "the ship lies", 300, 0.7, 0)
    (run.folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match=r"tokenizer.json is missing; take it from the first node"):
        sample(run.folder, "sea", 1, 0.0, 0)


def test_what_a_killed_preparation_leaves_in_the_cache_is_removed_some_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    def be_killed(inputs: object, out: Path, *_: object) -> None:
        left.extend(path.name for path in out.parent.iterdir())
        raise RuntimeError("killed")

    monkeypatch.setattr("slipway.train.text.corpus.prepare", be_killed)
    (tmp_path / "book.txt").write_text("the sea\n")
    with pytest.raises(RuntimeError, match="killed"):
        open_corpus(f"file:{tmp_path / 'book.txt'}", None, make_context(tmp_path), 16)
    assert len(left) == 2
    # The folder is called so for `temporary_folder` to know it, and what lies beside it must be known as well.
    assert all(re.fullmatch(rf"\.[0-9a-f]{{32}}\.{MAKING}\..+", name) for name in left), left


def test_a_run_keeps_to_its_tokenizer(folder: Path, train: Start, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n".join(documents(300)))
    words = ("gpt", *MODEL, "--steps", 2)
    train(*words, "--dataset", f"tokens:{folder}")
    other = write_tokenizer(tmp_path / "other.json", 301)
    run = train(*words, "--dataset", f"file:{book}", "--tokenizer", other, resume="auto")
    assert "holds the work of another tokenizer than other.json" in message(run)
    run = train(*words, "--dataset", f"file:{book}", resume="auto")
    assert "holds the work of another tokenizer than bytes" in message(run)


def test_a_run_of_bytes_keeps_to_them(train: Start, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n".join(documents(300)))
    words = ("gpt", *MODEL, "--dataset", f"file:{book}", "--steps")
    train(*words, 2)
    other = write_tokenizer(tmp_path / "other.json", 301)
    run = train(*words, 3, "--tokenizer", other, resume="auto")
    assert "holds the work of another tokenizer than other.json" in message(run)
    assert train(*words, 3, resume="auto").exit_code == 0, "nothing of the other tokenizer was left in the run"


def test_the_operations_for_each_token_are_those_of_palms_formula() -> None:
    with torch.device("meta"):
        model = Gpt(GptConfig(layers=12, heads=12, embed=768, context=1024, vocab_size=50257))
    # nanoGPT's estimate_mfu for GPT-2 124M: 123,653,376 parameters without positions, 12 × 12 × 64 × 1024 of attention.
    assert flops_per_token(model) == 6 * 123_653_376 + 12 * 12 * 12 * 64 * 1024
