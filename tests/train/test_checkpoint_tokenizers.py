"""The tokenizer that `finetune` uses: the checkpoint's own, or the one that was typed, and never a guess."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from token_files import write_tokenizer
from tokenizers import Tokenizer as Library

from slipway.options import parse
from slipway.options.finetune import FinetuneOptions
from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.gpt import GptConfig
from slipway.train.text.checkpoints import INCLUDE, read_tokenizer
from slipway.train.text.tokenizer import open_tokenizer
from slipway.train.worker.context import outside_job
from slipway.train.workloads.finetune import choose_tokenizer

pytestmark = pytest.mark.pull


def model(vocab_size: int) -> GptConfig:
    """The dimensions of some model."""
    return GptConfig(2, 2, 32, 64, vocab_size)


@pytest.mark.parametrize(
    "names",
    [
        ["vocab.txt"],
        ["vocab.txt", "tokenizer_config.json"],
        ["spiece.model"],
        ["sentencepiece.bpe.model"],
        ["tokenizer.model"],
        ["cl100k_base.tiktoken"],
        ["vocab.json", "merges.txt"],
        ["merges.txt"],
        ["tokenizer_config.json"],
    ],
)
@pytest.mark.parametrize("vocab_size", [256, 400])
def test_a_tokenizer_in_another_form_is_named_and_bytes_are_not_used_instead(
    names: list[str], vocab_size: int, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigurationError) as error:
        read_tokenizer(tmp_path, model(vocab_size))
    assert all(name in str(error.value) for name in names)
    assert "--tokenizer tokenizer" in str(error.value)


def convert(told: str, folder: Path) -> None:
    """Run the command of a message in a folder, without a network."""
    command = told.partition("--tokenizer tokenizer: ")[2].replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-c", command], cwd=folder, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(("form", "config"), [("gpt2", False), ("bert", True)])
def test_after_the_command_for_another_form_the_same_tokens_are_read(form: str, config: bool, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    if config:
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
    if form == "gpt2":
        Library.from_file(str(write_tokenizer(tmp_path / "own.json"))).model.save(str(folder))
        text, tokens = "sea  wind\n水", open_tokenizer(str(tmp_path / "own.json")).encode("sea  wind\n水")
    else:
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsea\n##s\nwind\n")
        text, tokens = "Seas wind", [5, 6, 7]
    with pytest.raises(ConfigurationError, match=r"vocab\.") as of_model:
        read_tokenizer(folder, model(400))
    with pytest.raises(ConfigurationError) as typed:
        open_tokenizer(str(folder))
    assert str(typed.value) == str(of_model.value)
    convert(str(typed.value), tmp_path)
    assert open_tokenizer(str(tmp_path / "tokenizer")).encode(text) == tokens


def test_a_checkpoint_without_any_tokenizer_is_refused_unless_its_tokens_are_bytes(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path, model(256)).identity == "bytes"
    for vocab_size in (255, 257, 50257):
        with pytest.raises(ConfigurationError, match=r"has no tokenizer.json, so .* with bytes"):
            read_tokenizer(tmp_path, model(vocab_size))


def test_what_is_fetched_from_the_hub_holds_the_tokenizer_in_whatever_form() -> None:
    assert {"tokenizer.json", "vocab.txt", "spiece.model", "merges.txt", "tokenizer_config.json"} <= set(INCLUDE)


def test_a_tokenizer_that_is_typed_is_used_where_the_model_has_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    own = write_tokenizer(tmp_path / "own.json")  # 300 tokens
    with outside_job() as context:

        def choose(typed: str, vocab_size: int) -> str:
            options = parse(FinetuneOptions, ["--tokenizer", typed])
            return choose_tokenizer(options, tmp_path, model(vocab_size), context).name

        assert choose("bytes", 400) == "bytes"
        assert choose(str(own), 400) == "own.json"
        with pytest.raises(ConfigurationError, match=r"--tokenizer .*own.json has 300 tokens, and its model 256"):
            choose(str(own), 256)
