"""Text to tokens and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_files import write_tokenizer
from tokenizers import Tokenizer as Library
from tokenizers import processors

from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer

TEXTS = ["", "def f(x):\n    return x", "él año ß 水 \U0001f6a2", "  two  spaces\t\n\n"]


@pytest.fixture(params=["bytes", "file"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return open_tokenizer("bytes" if request.param == "bytes" else str(write_tokenizer(tmp_path / "own.json")))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back_as_they_were(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.size for token in tokens)


def test_many_texts_have_the_tokens_of_each(tokenizer: Tokenizer) -> None:
    assert [array.tolist() for array in tokenizer.encode_all(TEXTS)[0]] == [tokenizer.encode(text) for text in TEXTS]


def test_what_is_stored_beside_a_run_is_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    tokenizer.save(folder)
    again = open_tokenizer(str(folder)) if any(folder.iterdir()) else open_tokenizer("bytes")
    assert (again.identity, again.size, again.end) == (tokenizer.identity, tokenizer.size, tokenizer.end)


@given(st.text())
def test_bytes_are_utf8(text: str) -> None:
    assert ByteTokenizer().encode(text) == list(text.encode())


def test_tokens_that_a_tokenizer_has_not_do_no_harm(tokenizer: Tokenizer) -> None:
    text = tokenizer.decode([*tokenizer.encode("sea"), tokenizer.size, tokenizer.size + 7])
    assert text.startswith("sea")


def test_nothing_is_added_to_a_text(tmp_path: Path) -> None:
    library = Library.from_file(str(write_tokenizer(tmp_path / "own.json")))
    library.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    library.enable_truncation(3)
    library.enable_padding(length=40)
    library.save(str(tmp_path / "adding.json"))
    plain, adding = (open_tokenizer(str(tmp_path / name)) for name in ("own.json", "adding.json"))
    assert adding.encode("a ramp of wood") == plain.encode("a ramp of wood")
    assert adding.encode_all(["sea"])[0][0].tolist() == plain.encode("sea")


@pytest.mark.parametrize(
    ("settings", "end"),
    [(None, "<|endoftext|>"), ({"eos_token": "s"}, "s"), ({"eos_token": {"content": "s"}}, "s"), ([], "<|endoftext|>")],
)
def test_the_end_of_a_document_is_what_the_settings_or_the_usual_names_say(
    tmp_path: Path, settings: object, end: str
) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = open_tokenizer(str(tmp_path))
    assert tokenizer.end is not None
    assert tokenizer.decode([tokenizer.end]) == end


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"odd.json is no tokenizer that can be read"):
        open_tokenizer(str(tmp_path / "odd.json"))
    with pytest.raises(ConfigurationError, match=r"holds no tokenizer.json"):
        open_tokenizer(str(tmp_path))
