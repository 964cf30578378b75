"""Options of `finetune`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, option
from slipway.options.dataset import REPO, check_tokenizer, nearest_path, seen_from
from slipway.options.gpt import TextOptions
from slipway.options.paths import require_local
from slipway.protocol.mistake import ConfigurationError


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class FinetuneOptions(TextOptions):
    """Fine-tune a pretrained GPT-2 checkpoint, and compare its perplexity before and after."""

    workload: ClassVar[str] = "finetune"
    example: ClassVar[str] = "--steps 50 --export my-model"
    # Rate and clipping as transformers' Trainer has them. A tiny checkpoint made on the fly learns with `TINY_LR`.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {
            "steps": 200, "batch_size": 16, "lr": 5e-5, "warmup": 20, "schedule": "linear", "clip": 1.0,
            "weight_decay": 0.01, "save_every": 100, "eval_every": 100, "eval_samples": 256,
        }
    }  # fmt: skip

    model: str | None = option(
        None,
        click.STRING,
        "A folder or a Hub repo (REPO or REPO@REVISION) with a GPT-2; by default a tiny one is created.",
    )
    tokenizer: str | None = option(
        None,
        click.STRING,
        "bytes, a tokenizer.json, a folder with one, or a repo of the Hub; by default the checkpoint's own.",
    )
    context: int | None = option(None, COUNT, "Tokens per sample; by default the context length of the model.")
    train_blocks: int | None = option(
        None, COUNT, "Train only the last N blocks and the layers after them; embeddings and earlier blocks are frozen."
    )

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other, ConfigurationError for what is not there."""
        super().check()
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        if self.model is None or Path(self.model).is_dir():
            return
        require_local(self.model, f"--model {self.model}")
        if Path(self.model).exists() or self.model.startswith(".") or not re.fullmatch(REPO, self.model):
            raise ConfigurationError(
                f"--model {self.model} is no folder{seen_from(self.model)}.{nearest_path(self.model)} Type the path of a folder "
                "with config.json and safetensors, or a repo of the Hub: OWNER/NAME or OWNER/NAME@REVISION."
            )


TINY_LR = 3e-3
