"""What --dataset and --tokenizer may say, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from slipway.options import parse
from slipway.options.dataset import parse_hub_data
from slipway.options.gpt import GptOptions
from slipway.protocol.mistake import ConfigurationError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    for name in ("tokens", "unfinished", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("text")
    (tmp_path / "tokens" / "manifest.json").write_text("{}")
    (tmp_path / "unfinished" / ".preparation").mkdir()


@pytest.mark.parametrize(
    "dataset", ["stdlib", "file:notes.txt", "file:folder", "tokens:tokens", "hub:acme/text", "hub:acme/text/one@v1.0"]
)
def test_data_have_one_of_four_forms(dataset: str) -> None:
    assert parse(GptOptions, ["--dataset", dataset]).dataset == dataset


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("stdlb", "Did you mean stdlib?"),
        ("files:notes.txt", "Did you mean file:notes.txt?"),
        ("token:tokens", "Did you mean tokens:tokens?"),
        ("notes.txt", "Did you mean file:notes.txt?"),
        ("tokens", "Did you mean tokens:tokens?"),
        ("acme/text", "Did you mean hub:acme/text?"),
        ("tokens:", "Did you mean tokens:…?"),
        ("7", "type stdlib, file:PATH, tokens:DIR or hub:OWNER/NAME[/FOLDER][@REVISION]."),
    ],
)
def test_another_form_is_refused_with_what_was_probably_meant(dataset: str, said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse(GptOptions, ["--dataset", dataset])
    assert refused.value.format_message().endswith(said)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--dataset", "file:note.txt", r"there is no note.txt in /.*\. Did you mean notes.txt\?"),
        ("--dataset", "file:empty", r"empty is an empty folder\.$"),
        ("--dataset", "tokens:token", r"there is no token in /.*\. Did you mean tokens\?"),
        ("--dataset", "tokens:folder", r"folder holds no manifest.json. Make .* or type file:folder for text"),
        ("--dataset", "tokens:unfinished", r"unfinished is not finished; continue with the same"),
        ("--dataset", "hub:@main", r"names no repo; type hub:OWNER/NAME"),
        ("--tokenizer", "own.json", r"there is no own.json in /.*Type bytes, the path"),
        ("--tokenizer", "a/b/c", r"there is no a/b/c"),
    ],
)
def test_what_is_not_there_is_a_mistake_of_configuration(option: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(GptOptions, [option, value])


def test_a_file_names_the_line_of_a_wrong_form(tmp_path: Path) -> None:
    (tmp_path / "gpt.yaml").write_text("layers: 2\ndataset: fil:notes.txt\n")
    with pytest.raises(ConfigurationError, match=r"gpt.yaml line 2: .*Did you mean file:notes.txt\?"):
        parse(GptOptions, ["--config", "gpt.yaml"])


@pytest.mark.parametrize(
    ("source", "repo", "folder"),
    [
        ("acme/text", "acme/text", ""),
        ("acme/text@v1", "acme/text@v1", ""),
        ("acme/text/sample/10BT", "acme/text", "sample/10BT"),
        ("acme/text/sample@refs/pr/1", "acme/text@refs/pr/1", "sample"),
    ],
)
def test_a_data_set_of_the_hub_is_a_repo_and_a_folder(source: str, repo: str, folder: str) -> None:
    assert parse_hub_data(source) == (repo, folder)


def test_the_checks_need_no_torch() -> None:
    code = (
        "import sys; from slipway.options import parse; from slipway.options.gpt import GptOptions; "
        "parse(GptOptions, ['--dataset', 'tokens:tokens', '--tokenizer', 'bytes']); "
        "print(sorted({'torch', 'numpy', 'tokenizers', 'pyarrow'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("size", "context", "said"),
    [
        (1, 128, "it has 1 bytes, and 257 are needed for --context 128: .* Use more text.$"),
        (6, 128, "it has 6 bytes, and 257 are needed for --context 128: .* Use more text, or type --context 2.$"),
        (300, 256, "it has 300 bytes, and 513 are needed .* or type --context 149.$"),
        (5000, 4096, "it has 5,000 bytes, and 8,193 are needed .* or type --context 2499.$"),
    ],
)
def test_a_text_too_small_for_two_samples_is_refused_with_what_would_do(size: int, context: int, said: str) -> None:
    book = Path("book.txt")
    book.write_text("x" * size)
    with pytest.raises(ConfigurationError, match=said) as refused:
        parse(GptOptions, ["--dataset", "file:book.txt", "--context", str(context)]).foresee()
    if typed := str(refused.value).partition("or type ")[2]:
        parse(GptOptions, ["--dataset", "file:book.txt", *typed.rstrip(".").split()]).foresee()
    book.write_text("x" * (2 * context + 1))
    parse(GptOptions, ["--dataset", "file:book.txt", "--context", str(context)]).foresee()
