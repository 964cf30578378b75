"""Which GPU a device's name means, and so how fast it could be at best."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from slipway.train.models.flops import utilisation

# Names as the driver gives them, and the peak in TFLOP/s; 0 where it is not in our table.
DEVICES = {
    "NVIDIA H200": 989, "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835,
    "NVIDIA H200 NVL": 835, "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A10G": 70, "NVIDIA A10": 125, "NVIDIA L40S": 362, "NVIDIA L4": 121, "Tesla V100-SXM2-16GB": 125,
    "Tesla T4": 65, "NVIDIA GeForce RTX 4090": 165,
    "NVIDIA L40": 0, "NVIDIA RTX A4000": 0, "NVIDIA RTX A1000": 0, "NVIDIA T400 4GB": 0, "NVIDIA GeForce GTX 1080": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_told_from_others_whose_names_begin_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    expected = 1e12 / (DEVICES[name] * 1e12) if DEVICES[name] else 0.0
    assert utilisation(1e12, torch.device("cuda")) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 312 * 14 / 108),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 14, 312 * 14 / 108),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, 989 * 60 / 132),
        ("NVIDIA H100 NVL MIG 1g.12gb", 16, 835 * 16 / 132),
        ("NVIDIA A30 MIG 1g.6gb", 14, 0),
    ],
)
def test_a_slice_is_measured_by_its_own_multiprocessors(
    name: str, multiprocessors: int, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    facts = SimpleNamespace(multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    assert utilisation(1e12, torch.device("cuda")) == pytest.approx(1 / peak if peak else 0.0)
