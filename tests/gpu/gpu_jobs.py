"""`slipway` as a command, on the GPU or rehearsed on the CPU, and what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ground import bare_environment

PATIENCE = 280  # s, which is less than a test may take; a cold compiler needs more than one


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its code and all that it said; `folder` is where it was started."""

    code: int
    text: str
    folder: Path

    @property
    def run(self) -> Path:
        """The one run directory that it made."""
        [run] = (self.folder / "runs").iterdir()
        return run

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]


def run_slipway(folder: Path, words: Sequence[str], device: torch.device, variables: Mapping[str, str]) -> Ended:
    """Run `slipway` in a folder to its end."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}
    job = subprocess.run(
        [sys.executable, "-m", "slipway", *words],
        cwd=folder, env={**bare_environment(), "PYTHONWARNINGS": "ignore", **hidden, **variables},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    return Ended(job.returncode, job.stdout, folder)
