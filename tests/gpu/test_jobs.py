"""Whole jobs on the GPU, as they are typed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from gpu_jobs import Ended
from needs import reason

Slipway = Callable[..., Ended]

TEXT = "--eval-samples 16 --sample-tokens 20"
JOBS = {
    "linear": "linear --steps 20 --compare",
    "linear, started by hand": "linear --steps 20 --launcher spawn",
    "gpt": f"gpt --preset tiny --steps 20 {TEXT}",
    "gpt of the size of GPT-2": f"gpt --preset gpt2 --steps 2 --batch-size 4 --accumulate 2 {TEXT}",
    "finetune": f"finetune --steps 10 {TEXT}",
    "vision": "vision --steps 20",
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_trains_on_the_gpu(slipway: Slipway, device: torch.device, name: str) -> None:
    if device.type == "cpu" and "GPT-2" in name:
        pytest.skip(reason("gpu"))
    job = slipway("run", "--nproc-per-node=1", *JOBS[name].split(), "--log-every", "1")
    assert job.code == 0, job.text
    assert f" on {device.type}" in job.text
    losses = [line["loss"] for line in job.metrics if "loss" in line]
    assert losses
    assert all(math.isfinite(loss) for loss in losses), losses
    assert [line["val_loss"] for line in job.metrics if "val_loss" in line], job.text


def test_more_processes_than_gpus_can_share_them(slipway: Slipway, device: torch.device) -> None:
    share = ["--oversubscribe"] if device.type == "cuda" else []
    count = torch.cuda.device_count() + 1 if share else 2
    job = slipway("run", f"--nproc-per-node={count}", *share, *f"gpt --steps 10 --log-every 5 {TEXT}".split())
    assert job.code == 0, job.text
    assert f"{count} processes" in job.text


def test_what_was_trained_on_the_gpu_can_be_judged_and_written_with(slipway: Slipway) -> None:
    job = slipway("run", "--nproc-per-node=1", "--run-dir=runs/one", *f"gpt --steps 10 {TEXT}".split())
    assert job.code == 0, job.text
    judged = slipway("eval", "runs/one")
    assert judged.code == 0, judged.text
    assert "val_loss" in judged.text
    written = slipway("sample", "runs/one", "--tokens", "10")
    assert written.code == 0, written.text


def test_allreduce_says_that_one_process_has_nobody_to_exchange_with(slipway: Slipway) -> None:
    job = slipway("run", "--nproc-per-node=1", "allreduce")
    assert job.code == 0, job.text
    assert "a single process has no communication to test" in job.text
    assert json.loads((job.run / "allreduce.json").read_text())["results"] == []
