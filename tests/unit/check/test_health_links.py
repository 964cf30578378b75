"""NVLink or PCIe of a GPU, as a stand-in for NVML tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import make_devices

from slipway.check.devices import describe_links


class NvmlError(Exception):
    """What NVML raises."""


def make_nvml(links: int = 0, speed: int | None = None, pcie: tuple[int, int] | None = (5, 16)) -> Any:
    """NVML of a GPU with so many active NVLinks of so many MB/s; `pcie` is generation and width, None refuses."""

    def state(gpu: int, link: int) -> int:
        if links == 0:
            raise NvmlError("Not Supported")
        return int(link < links)

    def bus(at: int) -> int:
        if pcie is None:
            raise NvmlError("Not Supported")
        return pcie[at]

    answer = SimpleNamespace(nvmlReturn=0 if speed else 3, value=SimpleNamespace(uiVal=speed or 0))
    return SimpleNamespace(
        NVMLError=NvmlError, NVML_FEATURE_ENABLED=1, NVML_SUCCESS=0, nvmlInit=lambda: None, nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetFieldValues=lambda gpu, fields: [answer],
        nvmlDeviceGetMaxPcieLinkGeneration=lambda gpu: bus(0), nvmlDeviceGetMaxPcieLinkWidth=lambda gpu: bus(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        (make_nvml(18, 26_562), "18 NVLinks, 478 GB/s each way"),
        (make_nvml(12, 25_781), "12 NVLinks, 309 GB/s each way"),
        (make_nvml(4), "4 NVLinks"),
        (make_nvml(), "PCIe 5.0 x16, 63 GB/s each way"),
        (make_nvml(pcie=(3, 8)), "PCIe 3.0 x8, 8 GB/s each way"),
        (make_nvml(pcie=(9, 16)), "PCIe 9.0 x16"),
        (make_nvml(pcie=None), ""),
    ],
)
def test_the_links_of_the_first_gpu(nvml: Any, words: str) -> None:
    assert describe_links(make_devices(2), nvml) == words


def test_without_gpus_nobody_is_asked() -> None:
    assert describe_links(make_devices()) == ""
