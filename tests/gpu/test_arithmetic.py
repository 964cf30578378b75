"""What a step does on this GPU: arithmetic, kernels, and the way of its data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from gpu_kernels import names_of_kernels
from gpu_tokens import from_disk
from loops import Loop
from noise_pictures import in_place
from shares import best_product
from torch.nn.attention import SDPBackend, sdpa_kernel

from slipway.train.loop.arithmetic import Buffers, are_finite, read_precision
from slipway.train.models.flops import utilisation

Train = Callable[..., Loop]

GPT = ("gpt", "--layers", 2, "--heads", 2, "--embed", 128, "--context", 128, "--batch-size", 8, "--log-every", 100)


def test_auto_is_the_arithmetic_that_this_gpu_has_tensor_cores_for(gpu: torch.device) -> None:
    major = torch.cuda.get_device_capability(gpu)[0]
    assert read_precision("auto", gpu).name == ("bf16" if major >= 8 else "fp16" if major == 7 else "fp32")


def test_products_are_taken_in_that_arithmetic(train: Train, gpu: torch.device) -> None:
    seen = set()
    loop = train(*GPT)
    for module in loop.training.task.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, given, result: seen.add(result.dtype))
    loop.take(1)
    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    assert seen == {names[read_precision("auto", gpu).name]}


def test_attention_is_flash_attention(train: Train, gpu: torch.device) -> None:
    if torch.cuda.get_device_capability(gpu) < (8, 0):
        pytest.skip("flash attention came with compute capability 8.0")
    loop = train(*GPT)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # raises where what it is given will not do
        loop.take(3)
    names = names_of_kernels(lambda: loop.take(1))  # whichever torch prefers: its own or cuDNN's
    assert any("flash" in name or "sdpa" in name for name in names), names


@pytest.mark.parametrize(("words", "name"), [(GPT, "fusedadam"), (("vision", "--batch-size", 32), "fusedsgd")])
def test_optimizers_are_fused(train: Train, gpu: torch.device, words: tuple[object, ...], name: str) -> None:
    with in_place(512, 32, 10):
        loop = train(*words)
    loop.take(2)
    names = names_of_kernels(lambda: loop.take(1))
    assert any(name in kernel for kernel in names), names


@pytest.mark.parametrize("disk", [False, True])
def test_data_come_from_pinned_memory(train: Train, gpu: torch.device, tmp_path: Path, disk: bool) -> None:
    more = {"alter": partial(from_disk, folder=tmp_path, length=128, device=gpu)} if disk else {}
    loop = train(*GPT, **more)
    loop.take(2)
    copies = [name for name in names_of_kernels(lambda: loop.take(1)) if "memcpy htod" in name]
    assert copies
    assert all("pinned" in name for name in copies), copies


def test_a_step_with_running_statistics_has_few_kernels_beside_the_networks_own(
    train: Train, gpu: torch.device
) -> None:
    with in_place(512, 32, 10):
        loop = train("vision", "--model", "resnet18", "--batch-size", 32)
    model = loop.training.task.model
    count = len(list(model.buffers()))

    def undo() -> None:
        Buffers(model.buffers()).restore(torch.zeros((), device=gpu))

    undo()
    assert len(names_of_kernels(undo)) < count / 2


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_what_running_statistics_were_comes_back_after_a_step_that_is_left_out(
    device: torch.device, bad: float
) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(5)).to(device)
    model.register_buffer("turned", torch.arange(6.0, device=device).view(2, 3).t())
    before = [buffer.clone() for buffer in model.buffers()]
    kept = Buffers(model.buffers())
    for buffer in model.buffers():
        buffer.fill_(torch.nan if buffer.is_floating_point() else 7)
    kept.restore(torch.tensor(bad, device=device))
    for buffer, old in zip(model.buffers(), before, strict=True):
        assert torch.equal(buffer, old) is bool(bad)


@pytest.mark.parametrize(
    ("value", "finite"), [(1.0, True), (3e38, True), (torch.inf, False), (-torch.inf, False), (torch.nan, False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_finite_tensors_are_told_from_others(
    device: torch.device, value: float, finite: bool, dtype: torch.dtype
) -> None:
    odd = torch.tensor([1.0, value, -1.0], dtype=dtype, device=device)
    tensors = [torch.ones(3, device=device), odd, odd[1], torch.empty(0, device=device)]
    assert are_finite(tensors) is finite


def test_no_product_is_faster_than_the_peak_that_is_known_of_this_gpu(gpu: torch.device) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(read_precision("auto", gpu).name)
    if dtype is None or not utilisation(1e12, gpu):
        pytest.skip(f"no peak is known of {torch.cuda.get_device_name(gpu)}")
    share = utilisation(best_product(gpu, dtype).median, gpu)
    assert 0 < share < 1.1  # some run a little faster than their data sheet says
