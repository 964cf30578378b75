"""A compiled model learns what another does, and a compile cache that is kept is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpu_jobs import Ended
from gpu_steps import first_step
from loops import Loop

from slipway.train.measure.kernels import REORDERED, distance

Train = Callable[..., Loop]
Slipway = Callable[..., Ended]

GPT = ("gpt", "--layers", 2, "--heads", 2, "--embed", 128, "--context", 128, "--batch-size", 16)


def test_compiled_and_not_the_gradient_is_the_same_but_for_the_order_of_sums(
    train: Train, device: torch.device
) -> None:
    words = (*GPT, "--log-every", 1, "--precision", "fp32")  # where a bound follows from the length of sums
    plain, compiled = first_step(train(*words)), first_step(train(*words, *compiling(device), folder="compiled"))
    assert compiled.loss == pytest.approx(plain.loss, rel=REORDERED)
    for name, gradient in plain.gradients.items():
        assert distance(compiled.gradients[name], gradient) < REORDERED, name


def test_compiled_it_learns(train: Train, device: torch.device) -> None:
    loop = train(*GPT, *compiling(device), "--steps", 60, "--log-every", 30, "--warmup", 10)
    loop.take(60)
    assert loop.loss < math.log(256) - 1  # knowing nothing costs log 256 = 5.5; how often each byte comes, 3.1


def compiling(device: torch.device) -> list[str]:
    """The option; on a CPU nothing, for there it takes half a minute."""
    return ["--compile"] if device.type == "cuda" else []


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
