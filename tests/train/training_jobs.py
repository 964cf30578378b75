"""What a worker finds around it, and what it leaves behind."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from slipway.train.snapshot import list_snapshots, verify_snapshot

PATIENCE = 120  # seconds; far more than any job here takes


@dataclass(frozen=True)
class Run:
    """A run directory, and what the job in it ended with."""

    folder: Path
    exit_code: int
    output: str

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """The outcome files, by rank."""
        files = (self.folder / "node-0" / "outcome").glob("rank-*.json")
        return [json.loads(path.read_text()) for path in sorted(files)]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def snapshots(self) -> list[str]:
        """Names of the snapshots, newest first."""
        return [path.name for path in list_snapshots(self.folder / "snapshots")]

    def tensors(self, *stems: str) -> dict[str, torch.Tensor]:
        """Tensors of the newest snapshot, which must verify."""
        newest = list_snapshots(self.folder / "snapshots")[0]
        verify_snapshot(newest)
        return {
            f"{stem}/{name}": tensor
            for stem in stems or ("model",)
            for name, tensor in load_file(newest / f"{stem}.safetensors").items()
        }


def worker_environment(folder: Path, resume: str) -> dict[str, str]:
    """What the launcher adds to a worker's environment."""
    (folder / "node-0").mkdir(parents=True, exist_ok=True)
    return {
        "SLIPWAY_RUN_DIR": str(folder),
        "SLIPWAY_NODE_DIR": str(folder / "node-0"),
        "SLIPWAY_BACKEND": "gloo",
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_RESUME": resume,
        "SLIPWAY_PROGRESS": "lines",
        "OMP_NUM_THREADS": "1",
    }


def raise_stop_flag(folder: Path, word: str = "stopped") -> None:
    """What the launcher does on a signal."""
    (folder / "node-0").mkdir(parents=True, exist_ok=True)
    (folder / "node-0" / "stop").write_text(json.dumps({"outcome": word, "signal": "SIGTERM"}))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_metrics(folder: Path, job: subprocess.Popen[str]) -> None:
    """Return once the first line of metrics is there, or the job has ended."""
    deadline = time.monotonic() + PATIENCE
    path = folder / "metrics.jsonl"
    while job.poll() is None and time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
        time.sleep(0.01)


def youngest_child(process: int) -> int:
    """The process that torchrun started last."""
    return max(int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split())
