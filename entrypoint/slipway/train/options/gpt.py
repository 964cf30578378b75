"""Options of `gpt`, and those that every training on text has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from slipway.train.options.common import COUNT, COUNT_OR_ZERO, NOT_NEGATIVE, SHARE, Exportable, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(Exportable):
    """Options of every training on text."""

    dataset: str = option("stdlib", click.Choice(["stdlib"]), "Text: stdlib is the Python standard library's source.")
    dropout: float = option(0.0, SHARE, "Share of activations dropped.")
    eval_samples: int = option(1024, COUNT, "Validation samples used by each evaluation.")
    sample_tokens: int = option(300, COUNT_OR_ZERO, "Length of the text written at the end; 0 writes none.")
    sample_prompt: str = option("def ", click.STRING, "How that text begins.")
    temperature: float = option(0.6, NOT_NEGATIVE, "Randomness of that text; 0 takes the likeliest token.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOptions(TextOptions):
    """Train a GPT-2 style transformer on text."""

    workload: ClassVar[str] = "gpt"
    # tiny: about a minute on two CPU cores. gpt2: the dimensions of GPT-2 124M, the schedule of nanoGPT's reproduction
    # (https://github.com/karpathy/nanoGPT, config/train_gpt2.py).
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            "layers": 4, "heads": 4, "embed": 128, "context": 128, "vocab_size": 256,
            "steps": 1000, "batch_size": 16, "accumulate": 1, "lr": 6e-3, "warmup": 100, "schedule": "cosine",
            "clip": 1.0, "weight_decay": 0.1, "compile": False, "save_every": 500, "eval_every": 500,
        },
        "gpt2": {
            "layers": 12, "heads": 12, "embed": 768, "context": 1024, "vocab_size": 50257,
            "steps": 600_000, "batch_size": 480, "accumulate": 20, "lr": 6e-4, "warmup": 2000, "schedule": "cosine",
            "clip": 1.0, "weight_decay": 0.1, "compile": None, "save_every": 1000, "eval_every": 1000,
        },
    }  # fmt: skip

    preset: str = option("tiny", click.Choice(list(presets)), "Size of the model and a schedule to match.")
    layers: int = option(4, COUNT, "Transformer blocks.")
    heads: int = option(4, COUNT, "Attention heads per block.")
    embed: int = option(128, COUNT, "Width of the model.")
    context: int = option(128, COUNT, "Tokens that the model sees at once; the length of a sample.")
    vocab_size: int = option(256, click.IntRange(min=256), "Different tokens; text is read as bytes, which need 256.")

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        super().check()
        if self.embed % self.heads:
            raise click.UsageError(f"--heads {self.heads} does not divide --embed {self.embed}.")
