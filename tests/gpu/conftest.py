"""Tests that need a GPU. Without one, those that a CPU can run are rehearsed there, to see that they do not rot; the others are
skipped. The first line of the report says which."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # where trainings and pictures for measuring are made
sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "gpu"))

from gpu_jobs import Ended, run_slipway
from loops import Loop, make_training
from needs import reason

FOLDER = Path(__file__).parent
REHEARSED = not torch.cuda.is_available()
# What cuBLAS must be told before it starts, for sums that are always taken in the same order.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_report_header() -> str:
    """Which GPU is tested, or why none is."""
    if torch.cuda.is_available():
        return f"GPU: {torch.cuda.get_device_name()}"
    return "GPU: none answers; tests/gpu is rehearsed on the CPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch may warn of what is so on some GPU."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def device() -> torch.device:
    """The GPU; rehearsed it is the CPU."""
    return torch.device("cpu") if REHEARSED else torch.device("cuda", 0)


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    """The GPU, for tests that mean nothing without one."""
    if device.type != "cuda":
        pytest.skip(reason("gpu") or "needs a GPU; torch can use none: make test-gpu on a machine with one")
    return device


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Leave no setting of torch to the next test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def train(device: torch.device, tmp_path: Path) -> Callable[..., Loop]:
    """Slipway's loop, from the words that one types after `slipway`, before its first step. Keywords: `folder`, `alter`."""

    def begin(*words: object, folder: str = "run", **more: Any) -> Loop:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        return Loop(make_training([str(word) for word in words], device, path, **more))

    return begin


@pytest.fixture
def slipway(device: torch.device, tmp_path: Path) -> Callable[..., Ended]:
    """Run `slipway` as a command, to its end, on one process. Keywords become environment variables."""

    def run(*words: str, **variables: str) -> Ended:
        return run_slipway(tmp_path, words, device, variables)

    return run
