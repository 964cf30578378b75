"""`slipway` as a command, on the GPU or rehearsed on the CPU, and what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PATIENCE = 280  # s, which is less than a test may take; a cold compiler needs more than one
# What tells a process where its GPU and its libraries are.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


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
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    environ |= {
        "PYTHONWARNINGS": "ignore",
        **({"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}),
        **variables,
    }
    command = [sys.executable, "-m", "slipway", *words]
    job = subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", timeout=PATIENCE, check=False,
    )  # fmt: skip
    return Ended(job.returncode, job.stdout, folder)
