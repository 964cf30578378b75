"""A compiled model learns what another does, and a compile cache that is kept is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpu_jobs import Ended
from loops import Loop

Train = Callable[..., Loop]
Slipway = Callable[..., Ended]

GPT = ("gpt", "--layers", 2, "--heads", 2, "--embed", 128, "--context", 128, "--batch-size", 16)


def test_compiled_and_not_they_learn_the_same(train: Train, device: torch.device) -> None:
    words = (*GPT, "--steps", 60, "--log-every", 30, "--warmup", 10)
    compiled = ["--compile"] if device.type == "cuda" else []  # on a CPU it takes half a minute
    losses: list[float] = []
    for more in ([], compiled):
        loop = train(*words, *more, folder=f"run{len(losses)}")
        loop.take(60)
        losses.append(loop.loss)
    assert losses[0] < math.log(256) - 1
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_a_compile_cache_that_was_kept_is_used(slipway: Slipway, gpu: torch.device, tmp_path: Path) -> None:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    words = ["gpt", "--preset", "small", "--layers", "2", "--steps", "3", "--compile", "--eval-samples", "8",
             "--sample-tokens", "0"]  # fmt: skip
    made = []
    for number in (1, 2):
        job = slipway("run", "--nproc-per-node=1", f"--run-dir=runs/{number}", *words, **caches)
        assert job.code == 0, job.text
        made.append({path for kind in ("**/*.cubin", "inductor/fxgraph/*/*") for path in tmp_path.glob(kind)})
    assert {path.suffix for path in made[0]} == {".cubin", ""}, "nothing was compiled for the GPU, or nothing kept"
    assert len(made[1] - made[0]) <= len(made[0]) // 10, "the second start compiled again"
