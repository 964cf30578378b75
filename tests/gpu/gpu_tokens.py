"""A text of tokens on the disk, as `slipway data prepare` leaves one, for trainings that read it from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from slipway.train.task import Task
from slipway.train.text.corpus import StoredTokens
from slipway.train.text.language import cut_windows
from slipway.train.text.token_folder import Stream


def from_disk(task: Task, folder: Path, length: int, device: torch.device) -> Task:
    """The task, on tokens that stay in a file."""
    file = folder / "text.bin"
    np.random.default_rng(0).integers(0, 256, 2**16).astype(np.uint16).tofile(file)
    stored = np.memmap(file, np.uint16, "r")
    tokens = StoredTokens(Stream([stored]), 256, folder, device)
    return replace(
        task,
        samples=(len(stored) - 1) // length,
        batch=lambda indices, keys: cut_windows(tokens, indices, length, length),
        on_host=True,
    )
