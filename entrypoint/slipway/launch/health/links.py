"""What a GPU can exchange with others at most, as NVML tells of its links."""

import importlib
from typing import Any

from slipway.launch.resolve.devices import Devices

SPEED = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: MB/s of each active NVLink in one direction
MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS
# GB/s of one lane in one direction by generation: PCI-SIG's transfer rates (2.5, 5, 8, 16, 32, 64 GT/s), times 8/10 in the
# first two for their code, 128/130 in the next three, and 242/256 in the last for its flits.
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def describe_links(devices: Devices, nvml: Any = None) -> str:
    """The links of the first GPU in words, with GB/s in one direction; empty where NVML does not tell. `nvml` is for tests."""
    if not devices.gpus:
        return ""
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(devices.gpus[0].index)
            return _nvlinks(nvml, gpu) or _pcie(nvml, gpu)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return ""


def _nvlinks(nvml: Any, gpu: Any) -> str:
    active = 0
    for link in range(MOST_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(gpu, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # this GPU has no more of them, or none
            break
    if not active:
        return ""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [SPEED])
    told = answer.nvmlReturn == nvml.NVML_SUCCESS and answer.value.uiVal
    return f"{active} NVLinks, {active * answer.value.uiVal / 1e3:.0f} GB/s each way" if told else f"{active} NVLinks"


def _pcie(nvml: Any, gpu: Any) -> str:
    generation, width = nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
    rate = f", {LANE[generation] * width:.0f} GB/s each way" if generation in LANE else ""
    return f"PCIe {generation}.0 x{width}{rate}"
