"""Text of all kinds for tests to prepare, and a tokenizer that was trained on it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = (
    "the ship lies on the slipway",
    "a ramp of wood",
    "sea, wind and rain",
    "él año ß 水",
    "def launch(ship):\n    pass",
)


def documents(count: int) -> list[str]:
    """Different texts, each of a few words."""
    return [f"{number}: {WORDS[number % len(WORDS)]} {WORDS[number * 7 % 5]}" for number in range(count)]


def write_lines(file: Path, texts: list[str], column: str = "text") -> Path:
    """JSON lines."""
    file.write_text("".join(json.dumps({"id": number, column: text}) + "\n" for number, text in enumerate(texts)))
    return file


def write_parquet(file: Path, texts: list[str], rows: int) -> Path:
    """Parquet with `rows` in each row group."""
    table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
    parquet.write_table(table, file, row_group_size=rows)
    return file


def write_tokenizer(file: Path, size: int = 300) -> Path:
    """A byte-level tokenizer with GPT-2's token for the end of a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents(50), trainer)
    tokenizer.save(str(file))
    return file


def write_large_tokenizer(file: Path) -> Path:
    """The same, with a token `<last>` that does not go into two bytes: 70,000."""
    tokenizer = json.loads(write_tokenizer(file).read_text())
    tokenizer["model"]["vocab"]["<last>"] = 70_000
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 70_000, "content": "<last>"})
    file.write_text(json.dumps(tokenizer))
    return file
