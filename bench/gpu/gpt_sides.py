"""GPT-2 124M as the benches of this folder train it: its size, its text, and Slipway's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from loops import Loop, make_training

from slipway.train.task import Task
from slipway.train.text.corpus import StoredTokens
from slipway.train.text.language import cut_windows
from slipway.train.text.token_folder import Stream

TOKENS = 2**24  # of the text; 32 MB
# Sequences of 1024 tokens that go through at once by GiB of the GPU: two trainings, one at work, fit beside each other.
AT_ONCE = {70: 64, 38: 32, 20: 16, 0: 8}


@dataclass(frozen=True)
class Size:
    """Dimensions of model and batch. `text` is the number of different tokens in the text."""

    layers: int = 12
    heads: int = 12
    embed: int = 768
    context: int = 1024
    vocabulary: int = 50304
    text: int = 50257
    batch: int = 512  # sequences: half a million tokens a step, as GPT-3 of this size was trained
    parts: int = 8

    @property
    def words(self) -> list[str]:
        """What is typed for a model of this size."""
        return [
            "gpt", "--preset", "gpt2", "--layers", f"{self.layers}", "--heads", f"{self.heads}", "--embed",
            f"{self.embed}", "--context", f"{self.context}", "--vocab-size", f"{self.vocabulary}", "--batch-size",
            f"{self.batch}", "--accumulate", f"{self.parts}", "--warmup", "10", "--sample-tokens", "0",
        ]  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context


TINY = Size(layers=1, heads=2, embed=32, context=16, vocabulary=304, text=256, batch=4, parts=2)


def choose_size(device: torch.device, smoke: bool) -> Size:
    """GPT-2 124M in parts that fit the device's memory; a tiny one for a smoke test."""
    if smoke:
        return TINY
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30
    return Size(parts=Size.batch // next(many for least, many in AT_ONCE.items() if memory >= least))


def make_text(folder: Path, size: Size) -> npt.NDArray[np.uint16]:
    """A memory map of tokens as frequent as words are in a language (Zipf's law), half of which follow from the one before.

    Their number in the text tells how fast an embedding is trained; with bytes, of which there are few, it would be slower.
    """
    random, count = np.random.default_rng(0), TOKENS if size.text > 256 else 2**12
    ranks = np.cumsum(1 / (np.arange(size.text) + 2.7))
    drawn = np.searchsorted(ranks / ranks[-1], random.random(count)).astype(np.uint16)
    successors = random.permutation(size.text).astype(np.uint16)
    follows = np.flatnonzero(random.random(count - 1) < 0.5)
    text = drawn.copy()
    text[follows + 1] = successors[drawn[follows]]
    path = folder / "text.bin"
    text.tofile(path)
    return np.memmap(path, np.uint16, "r")


def slipway(
    size: Size, stored: npt.NDArray[np.uint16], device: torch.device, folder: Path, more: Sequence[str] = ()
) -> Loop:
    """Slipway's loop on that text, which it reads as it reads any prepared tokens."""
    tokens = StoredTokens(Stream([stored]), size.text, folder, device)

    def alter(task: Task) -> Task:
        return replace(
            task,
            samples=(len(stored) - 1) // size.context,
            batch=lambda indices, keys: cut_windows(tokens, indices, size.context, size.context),
            on_host=True,
        )

    compiled = ["--compile"] if device.type == "cuda" else []
    return Loop(make_training([*size.words, *compiled, *more], device, folder, alter))
