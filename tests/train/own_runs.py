"""What tests compare of two runs of own loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """The same values, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{path}.{number}")
    else:
        assert one == other, path


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def results(path: Path, rank: int = 0) -> dict[str, Any]:
    """What a rank of a loop ended with."""
    found: dict[str, Any] = torch.load(Path(f"{path}-{rank}.pt"), weights_only=True)
    return found
