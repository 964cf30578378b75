"""Metrics for Weights & Biases (`--log-to wandb`). WANDB_PROJECT, WANDB_MODE, WANDB_API_KEY and its other variables apply."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slipway.protocol.durable import replace_file

SECONDS = 30  # for the first connection to its server, and for what is left to send at the end
ID = "wandb.id"  # file in the run directory: every start continues the same run


class WeightsAndBiases:
    """A run of wandb, which sends from a process of its own."""

    name = "Weights & Biases"

    def __init__(self, run: Path, options: Mapping[str, Any]) -> None:
        """Begin the run, or continue it. Raises wandb's errors, for example where there is no key."""
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "slipway",
            name=os.environ.get("WANDB_NAME") or run.name,
            id=(run / ID).read_text().strip() if (run / ID).exists() else None,
            resume="allow",
            dir=run,
            config=dict(options),
            settings=wandb.Settings(init_timeout=SECONDS, finish_timeout=SECONDS, console="off", silent=True),
        )
        replace_file(run / ID, self._run.id)
        self.where = self._run.url or ""  # offline there is none
        self._run.define_metric("*", step_metric="step")  # a step may be taken again after a failure

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""
        self._run.log({"step": step, **values})

    def write_text(self, step: int, name: str, text: str) -> None:
        """Take a text, shown as it is."""
        self.write(step, {name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Take a picture, uint8 of shape (3, height, width)."""
        self.write(step, {name: self._wandb.Image(picture.permute(1, 2, 0).cpu().numpy())})

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()
