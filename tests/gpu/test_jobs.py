"""Whole jobs on the GPU, as they are typed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gpu_jobs import Ended
from loops import open_context

from slipway.train.collectives import make_buffers
from slipway.train.group import leave_group

Slipway = Callable[..., Ended]

TEXT = ["--eval-samples", "16", "--sample-tokens", "20"]
JOBS: dict[str, list[str]] = {
    "linear": ["linear", "--steps", "20", "--compare"],
    "gpt": ["gpt", "--preset", "tiny", "--steps", "20", *TEXT],
    "gpt of the size of GPT-2": [
        "gpt",
        "--preset",
        "gpt2",
        "--steps",
        "2",
        "--batch-size",
        "4",
        "--accumulate",
        "2",
        *TEXT,
    ],
    "finetune": ["finetune", "--steps", "10", *TEXT],
    "vision": ["vision", "--steps", "20"],
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_trains_on_the_gpu(slipway: Slipway, device: torch.device, name: str) -> None:
    if device.type == "cpu" and "GPT-2" in name:
        pytest.skip("needs a GPU")
    job = slipway("run", "--nproc-per-node=1", *JOBS[name], "--log-every", "1")
    assert job.code == 0, job.text
    assert f" on {device.type}" in job.text
    losses = [line["loss"] for line in job.metrics if "loss" in line]
    assert all(math.isfinite(loss) for loss in losses), losses
    assert [line["val_loss"] for line in job.metrics if "val_loss" in line], job.text


def test_two_processes_can_share_the_gpu(slipway: Slipway, device: torch.device) -> None:
    share = ["--oversubscribe"] if device.type == "cuda" else []
    job = slipway("run", "--nproc-per-node=2", *share, "gpt", "--steps", "10", "--log-every", "5", *TEXT)
    assert job.code == 0, job.text
    assert "2 processes" in job.text


def test_a_job_that_was_stopped_goes_on_on_the_gpu(slipway: Slipway) -> None:
    words = ["run", "--nproc-per-node=1", "--run-dir=runs/one", "gpt", "--log-every", "5", *TEXT]
    assert slipway(*words, "--steps", "10").code == 0
    job = slipway(*words, "--steps", "20", "--resume", "auto")
    assert job.code == 0, job.text
    assert "going on from" in job.text
    assert [line["step"] for line in job.metrics if "loss" in line] == [5, 10, 15, 20]


def test_what_was_trained_on_the_gpu_is_judged_and_written_with_there(slipway: Slipway) -> None:
    assert slipway("run", "--nproc-per-node=1", "--run-dir=runs/one", "gpt", "--steps", "10", *TEXT).code == 0
    judged = slipway("eval", "runs/one")
    assert judged.code == 0, judged.text
    assert "val_loss" in judged.text or "loss" in judged.text
    written = slipway("sample", "runs/one", "--tokens", "10")
    assert written.code == 0, written.text


def test_allreduce_says_that_one_process_has_nobody_to_exchange_with(slipway: Slipway) -> None:
    job = slipway("run", "--nproc-per-node=1", "allreduce")
    assert job.code == 0, job.text
    assert "nothing travels between processes" in job.text
    assert json.loads((job.run / "allreduce.json").read_text())["results"] == []


def test_collectives_of_one_process_are_right_over_nccl(device: torch.device, tmp_path: Path) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1,
        device_id=device if backend == "nccl" else None,
    )  # fmt: skip
    try:
        for name in ("all-reduce", "broadcast", "all-gather"):
            buffers = make_buffers(name, 1000, torch.float32, open_context(device, tmp_path))
            buffers.fill()
            buffers.run()
            assert buffers.check() == "", name
    finally:
        leave_group()
