"""Text to tokens and back: plain bytes, or any `tokenizer.json` of a file, a model's folder or the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slipway.protocol.mistake import ConfigurationError
from slipway.train.placeholders import require_content
from slipway.train.text.coverage import Coverage, CoverageCounter
from slipway.train.text.encodings import python_command
from slipway.train.worker.prepared import agree_here

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

    from slipway.train.worker.context import Context

BYTES = "bytes"
FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
# Tokenizers in forms that are not read: GPT-2's old one, BERT's, SentencePiece's and tiktoken's; also settings alone.
OTHER_FORMS = (
    "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "*.tiktoken",
    SETTINGS,
)  # fmt: skip
# transformers' classes for those whose settings name none.
CLASSES = (({"vocab.json", "merges.txt"}, "GPT2TokenizerFast"), ({"vocab.txt"}, "BertTokenizerFast"))
# How published tokenizers call the token that ends a document, where their settings do not say.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")


class ByteTokenizer:
    """Each byte of UTF-8 is a token. Byte 0, which texts do not hold, ends a document."""

    name = identity = BYTES
    size = 256
    end = 0

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def encode_all(self, texts: Sequence[str]) -> tuple[Sequence[npt.NDArray[Any]], Coverage]:
        """The bytes of each text. Nothing is unknown, so nothing is counted."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts], Coverage()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; a model with more than 256 tokens can name one that is no byte."""
        return bytes(min(token, 255) for token in tokens).decode(errors="replace")

    def save(self, folder: Path) -> None:
        """Nothing is needed."""


class FileTokenizer:
    """A `tokenizer.json` as the `tokenizers` library reads it."""

    def __init__(self, file: Path, name: str) -> None:
        """Read `file`. Raises ConfigurationError where it is no tokenizer, OSError where it cannot be read."""
        from tokenizers import Tokenizer as Library

        require_content(file)
        self.name = name
        self._content = file.read_bytes()
        self.identity = hashlib.sha256(self._content).hexdigest()
        settings = file.with_name(SETTINGS)
        self._settings = settings.read_bytes() if settings.is_file() else b""
        try:
            self._library = Library.from_buffer(self._content)
        except Exception as error:  # the library raises no class of its own
            raise ConfigurationError(f"{file} is no tokenizer that can be read: {error}") from None
        self._library.no_truncation()
        self._library.no_padding()
        self.size = max(self._library.get_vocab().values(), default=-1) + 1
        if not self.size:
            raise ConfigurationError(f"{file} is a tokenizer without any token.")
        self.end = find_end(self._library, self._settings)
        self._counter = CoverageCounter(self._library, self._content)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with nothing added."""
        return self._library.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> tuple[Sequence[npt.NDArray[Any]], Coverage]:
        """The tokens of each text, and how much it knows. Raises ConfigurationError where it cannot read a text."""
        try:
            return self._counter.encode(texts)
        except Exception as error:  # the library raises no class of its own
            raise ConfigurationError(
                f"The tokenizer {self.name} cannot read the text: {error}. Type another --tokenizer; bytes reads every text."
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; a model may have more tokens than the tokenizer, and those say nothing."""
        return self._library.decode([token for token in tokens if token < self.size], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Write the tokenizer, byte by byte as it was read."""
        from slipway.protocol.durable import replace_file

        if self._settings:
            replace_file(folder / SETTINGS, self._settings)
        replace_file(folder / FILE, self._content)


# What training and sampling take. `name`: what the user typed; `identity`: `bytes`, or the sha256 of its file; `size`: the number
# of different tokens; `end`: the token after each document, None without one.
Tokenizer = ByteTokenizer | FileTokenizer


def described(tokenizer: Tokenizer) -> str:
    """A tokenizer in a line: its name, its size, which file it is, and what ends a document."""
    ends = "" if tokenizer.end is None else f", token {tokenizer.end} ends a document"
    which = "" if tokenizer.identity == BYTES else f", sha256 {tokenizer.identity[:12]}"
    return f"tokenizer: {tokenizer.name}, {tokenizer.size:,} tokens{ends}{which}"


def find_end(library: Library, settings: bytes) -> int | None:
    """The token that ends a document: as `tokenizer_config.json` says, else one of the usual names."""
    try:
        named = json.loads(settings or b"{}").get("eos_token")
    except (ValueError, AttributeError):
        named = None
    if isinstance(named, dict):
        named = named.get("content")
    found = (library.token_to_id(name) for name in (named, *ENDS) if isinstance(name, str))
    return next((token for token in found if token is not None), None)


def open_tokenizer(name: str, context: Context | None = None) -> Tokenizer:
    """The tokenizer that `name` means: `bytes`, a tokenizer.json or a folder with one, or a repo of the Hub.

    With a `context` one process of each node fetches it from the Hub while the others wait. Raises ConfigurationError.
    """
    if name == BYTES:
        return ByteTokenizer()
    path = Path(name)
    here = path.exists()
    if not (agree_here(context, here, f"--tokenizer {name}") if context else here):
        path = fetch_tokenizer(name, context)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        if explained := explain_other_form(path):
            raise ConfigurationError(explained)
        raise ConfigurationError(
            f"{path} holds no {FILE}. Type the path of one, of a folder with one, a repo of the Hub that has one, or bytes."
        )
    return FileTokenizer(file, path.name if Path(name).exists() else name)


def explain_other_form(folder: Path) -> str:
    """Which files of a folder without tokenizer.json are a tokenizer in another form, and how to convert it; empty for none."""
    others = [path.name for name in OTHER_FORMS for path in sorted(folder.glob(name))]
    if not others:
        return ""
    form = next((kind for files, kind in CLASSES if files <= {*others}), "AutoTokenizer")
    with suppress(OSError, ValueError, AttributeError):
        form = "AutoTokenizer" if json.loads((folder / SETTINGS).read_bytes()).get("tokenizer_class") else form
    command = f"from transformers import {form} as T; T.from_pretrained({str(folder)!r}).save_pretrained('tokenizer')"
    return (
        f"The tokenizer of {folder} is in a form that is not read ({', '.join(others)}), and there is no {FILE}. Convert it with "
        f"transformers (pip install transformers), and type --tokenizer tokenizer: {python_command(command)}"
    )


def fetch_tokenizer(repo: str, context: Context | None) -> Path:
    """The folder with a Hub repo's tokenizer. Raises what fetching raises."""
    from slipway.train.hub.fetch import fetch, fetch_together

    include = (FILE, *OTHER_FORMS)
    return fetch_together(context, repo, include=include) if context else fetch(repo, include=include)
