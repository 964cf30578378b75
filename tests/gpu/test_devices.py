"""What the launcher, which has no torch, says about the GPU, against what torch says."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from gpu_jobs import Ended

from slipway.check.devices import look_at_gpus
from slipway.launch.resolve.devices import read_devices

Slipway = Callable[..., Ended]


def test_the_launcher_counts_and_names_the_gpus_as_torch_does(gpu: torch.device) -> None:
    devices = read_devices(os.environ)
    assert devices.driver
    assert devices.problem == ""
    assert len(devices.gpus) == torch.cuda.device_count()
    for number, found in enumerate(devices.gpus):
        facts = torch.cuda.get_device_properties(number)
        assert found.capability == (facts.major, facts.minor)
        if found.uuid.startswith("GPU-"):  # a slice of a GPU is called otherwise
            assert found.name == facts.name
            assert str(facts.uuid) in found.uuid


def test_nvml_answers_what_the_check_asks_of_it(gpu: torch.device) -> None:
    rows = list(look_at_gpus(read_devices(os.environ), os.environ))
    assert [row for row in rows if row.what == "driver" and row.level == "ok"]
    facts = [row for row in rows if row.what.startswith("GPU") and row.level == "ok"]
    assert facts, rows


def test_the_check_multiplies_on_the_gpu(slipway: Slipway, device: torch.device) -> None:
    job = slipway("check")  # whether this node is fit in all other ways is not the question
    assert "products correct: fp32" in job.text, job.text
    if device.type == "cuda":
        assert "GPU 0 product" in job.text or "MIG-" in job.text
        if torch.cuda.get_device_capability(device) >= (8, 0):
            assert "bf16 " in job.text


def test_the_plan_has_a_process_for_each_gpu(slipway: Slipway, gpu: torch.device) -> None:
    job = slipway("plan", "gpt")
    assert job.code == 0, job.text
    count = torch.cuda.device_count()
    assert f"1 node × {count} GPU" in job.text
