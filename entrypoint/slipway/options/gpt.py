"""Options of `gpt`, and those that every training on text has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, COUNT_OR_ZERO, NOT_NEGATIVE, SHARE, Exportable, option
from slipway.options.dataset import STDLIB, TOKENS, Dataset, check_dataset, check_tokenizer, require_length


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class TextOptions(Exportable):
    """Options of every training on text."""

    dataset: str = option(
        STDLIB,
        Dataset(),
        "Text: stdlib is the Python standard library's source; file is text, JSON lines or parquet, or a folder of "
        "such files; tokens is a folder written by `slipway data prepare`; hub is a data set on the Hub, "
        "OWNER/NAME[/FOLDER][@REVISION].",
    )
    column: str = option("text", click.STRING, "The column (or key) with the text, for JSON lines and parquet.")
    allow_unknown: bool = option(
        False, None, "Train even if the tokenizer does not know most of the text, which is otherwise an error."
    )
    dropout: float = option(0.0, SHARE, "Fraction of activations that are dropped.")
    eval_samples: int = option(1024, COUNT, "Validation samples used by each evaluation.")
    sample_tokens: int = option(
        300, COUNT_OR_ZERO, "Tokens of the text that is generated at the end; 0 generates none."
    )
    sample_prompt: str = option("def ", click.STRING, "The beginning of that text.")
    temperature: float = option(0.6, NOT_NEGATIVE, "Randomness of that text; 0 selects the most likely token.")

    @property
    def reads_stdlib(self) -> bool:
        """Whether the data are Python's own library."""
        return self.dataset == STDLIB

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for data that are not there."""
        super().check()
        check_dataset(self.dataset)


# tiny: about a minute on two CPU cores. small: nanoGPT's character-level model (config/train_shakespeare_char.py).
# gpt2 and larger: the dimensions of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), table
# 2, with the schedule of nanoGPT's reproduction of the first (config/train_gpt2.py) and the learning rates that Brown
# et al., "Language Models are Few-Shot Learners" (2020), table 2.1, give for such sizes. The parts of a batch
# (accumulate) are cut for one GPU with 80 GB. https://github.com/karpathy/nanoGPT
GPT2: Mapping[str, Any] = {
    "layers": 12, "heads": 12, "embed": 768, "context": 1024, "vocab_size": 50257, "dropout": 0.0,
    "steps": 600_000, "batch_size": 480, "accumulate": 20, "lr": 6e-4, "warmup": 2000, "schedule": "cosine",
    "clip": 1.0, "weight_decay": 0.1, "compile": None, "save_every": 1000, "eval_every": 1000,
}  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "layers": 4, "heads": 4, "embed": 128, "context": 128, "vocab_size": 256, "dropout": 0.0,
        "steps": 1000, "batch_size": 16, "accumulate": 1, "lr": 6e-3, "warmup": 100, "schedule": "cosine",
        "clip": 1.0, "weight_decay": 0.1, "compile": False, "save_every": 500, "eval_every": 500,
    },
    "small": {
        "layers": 6, "heads": 6, "embed": 384, "context": 256, "vocab_size": 256, "dropout": 0.2,
        "steps": 5000, "batch_size": 64, "accumulate": 1, "lr": 1e-3, "warmup": 100, "schedule": "cosine",
        "clip": 1.0, "weight_decay": 0.1, "compile": None, "save_every": 1000, "eval_every": 500,
    },
    "gpt2": GPT2,
    "gpt2-medium": {**GPT2, "layers": 24, "heads": 16, "embed": 1024, "accumulate": 40, "lr": 3e-4},
    "gpt2-large": {**GPT2, "layers": 36, "heads": 20, "embed": 1280, "accumulate": 60, "lr": 2.5e-4},
    "gpt2-xl": {**GPT2, "layers": 48, "heads": 25, "embed": 1600, "accumulate": 120, "lr": 2e-4},
}  # fmt: skip


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class GptOptions(TextOptions):
    """Train a GPT-2 style transformer on text."""

    workload: ClassVar[str] = "gpt"
    example: ClassVar[str] = "--preset tiny --steps 200"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    tokenizer: str | None = option(
        None,
        click.STRING,
        "bytes, a tokenizer.json, a folder with one, or a repo of the Hub; by default the data's own, else bytes.",
    )
    preset: str = option("tiny", click.Choice(list(presets)), "Size of the model, and a schedule for it.")
    layers: int = option(4, COUNT, "Transformer blocks.")
    heads: int = option(4, COUNT, "Attention heads per block.")
    embed: int = option(128, COUNT, "Width of the model.")
    context: int = option(128, COUNT, "Context length of the model: the number of tokens per sample.")
    vocab_size: int = option(
        256,
        COUNT,
        "Size of the vocabulary; at least the tokenizer's, which is the default. For bytes, the default is that of the preset. "
        "50304 is GPT-2's 50257 rounded up.",
    )
    checkpoint_activations: bool = option(
        False,
        None,
        "Keep only the inputs of each block and recompute the rest: less memory, a quarter less speed.",
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for data that are not there."""
        super().check()
        if self.embed % self.heads:
            above = next(heads for heads in range(self.heads + 1, self.embed + 1) if self.embed % heads == 0)
            raise click.UsageError(
                f"--heads {self.heads} does not divide --embed {self.embed}. Type --heads {above}, or --embed "
                f"{math.ceil(self.embed / self.heads) * self.heads}."
            )
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        in_bytes = self.tokenizer in (None, "bytes") and not self.dataset.startswith(TOKENS)
        if in_bytes and self.vocab_size < 256:
            raise click.UsageError(
                f"--vocab-size {self.vocab_size} is less than the 256 different bytes; type 256 or more."
            )

    def foresee(self) -> None:
        """Raise ConfigurationError for a text that is too small for these samples."""
        if self.tokenizer in (None, "bytes"):
            require_length(self.dataset, self.context)
