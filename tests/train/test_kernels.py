"""What `slipway selftest` compiles is held against what torch computes; compilers and the GPU are stand-ins here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from slipway.train.measure import kernels

CPU = torch.device("cpu")
Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(("factor", "key"), [(1.0, "right"), (1.0 + 1e-6, "right"), (1.01, "wrong"), (2.0, "wrong")])
def test_gradients_may_differ_by_the_order_of_sums_and_no_more(
    monkeypatch: pytest.MonkeyPatch, factor: float, key: str
) -> None:
    def compiled(model: torch.nn.Module) -> Forward:
        return lambda tokens, targets: model(tokens, targets) * factor

    monkeypatch.setattr(torch, "compile", compiled)
    assert list(kernels.check_compiled(CPU)) == [key]


def test_without_a_compiler_the_row_is_skipped_in_a_sentence() -> None:
    words = [sys.executable, "-m", "slipway.train.measure.kernels", "compile"]
    environ = {**os.environ, "PATH": "/nonexistent", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    environ.pop("CXX", None)
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "g++ is not installed" in report["skipped"]
    assert "apt-get" not in report["skipped"]


ADD = """
import torch
from slipway.train.measure.triton_sum import BLOCK, add
numbers = torch.arange(2.0 * BLOCK + 7)
assert torch.equal(add(numbers, 2 * numbers), 3 * numbers)
"""


def test_the_triton_kernel_adds_all_blocks_also_one_that_is_not_full() -> None:
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}  # Triton's own stand-in for a GPU
    done = subprocess.run([sys.executable, "-c", ADD], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
