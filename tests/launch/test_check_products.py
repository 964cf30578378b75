"""The matrix products of `slipway check`: known without torch, and a single wrong number in one of them shows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from slipway.check.products import look_at_products
from slipway.launch.resolve.devices import Devices
from slipway.train.measure import health


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(health, "TIMES", {"cpu": 4})
    yield
    torch.set_float32_matmul_precision(before)


def test_python_and_torch_know_the_same_product() -> None:
    squares = [health.make_square(seed) for seed in (0, 1)]
    a, b = (torch.tensor(square).repeat(4, 4) for square in squares)
    assert torch.equal(a @ b, torch.tensor(health.multiply_squares(*squares, 4)).repeat(4, 4))
    assert squares[0] != squares[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_no_number_is_rounded_in_any_type_at_the_size_used_on_gpus(dtype: torch.dtype) -> None:
    largest = [[health.LARGEST] * health.SIDE] * health.SIDE
    highest = health.multiply_squares(largest, largest, 256)[0][0]
    numbers = [times * 256 for times in range(-highest // 256, highest // 256 + 1)]
    assert torch.tensor(numbers, dtype=dtype).long().tolist() == numbers


@pytest.mark.parametrize(
    ("kind", "capability", "names"),
    [
        ("cpu", (0, 0), ["fp32"]),
        ("cuda", (7, 5), ["fp32", "fp16"]),
        ("cuda", (9, 0), ["fp32", "tf32", "bf16", "fp16"]),
    ],
)
def test_each_arithmetic_that_a_device_has_is_tried(
    monkeypatch: pytest.MonkeyPatch, kind: str, capability: tuple[int, int], names: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert list(health.kinds(torch.device(kind))) == names


def test_a_device_that_computes_right_says_how_fast() -> None:
    assert "6 products correct: fp32" in health.check_products(torch.device("cpu"))["right"]


def test_a_single_wrong_number_in_one_product_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = torch.matmul, iter(range(100))

    def flip(*factors: torch.Tensor, out: torch.Tensor) -> None:
        honest(*factors, out=out)
        if next(calls) == 4:
            out[7, 11] += 1

    monkeypatch.setattr(torch, "matmul", flip)
    found = health.check_products(torch.device("cpu"))
    assert "fp32, product 5: 1 of 8,464 numbers, the first at (7, 11)" in found["wrong"]


def test_this_machines_cpu_computes_right_in_a_child_process() -> None:
    (row,) = look_at_products(Devices(), os.environ)
    assert (row.what, row.level) == ("CPU product", "ok"), row.found


def test_a_device_that_cannot_be_used_and_a_child_that_hangs_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = look_at_products(Devices(), os.environ, seconds=0.1)
    assert (row.level, row.found) == ("error", "no result within 0 s")
    monkeypatch.setattr("slipway.check.products.MODULE", "slipway.no_such_module")
    (row,) = look_at_products(Devices(), os.environ)
    assert row.level == "error"
    assert "No module named" in row.found
