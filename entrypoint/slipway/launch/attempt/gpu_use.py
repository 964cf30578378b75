"""How busy the GPU of each rank is, for `slipway status`: what NVML answers, where it answers."""

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from slipway.launch.resolve.devices import Gpu, ask


class GpuUse:
    """Percent of the time in which a rank's GPU was in use, over what NVML takes for a moment: 1/6 to 1 s."""

    def __init__(self, gpus: Mapping[int, Gpu], nvml: Any = None) -> None:
        """`gpus` of the ranks, none on the CPU; `nvml` is for tests."""
        self._gpus, self._nvml, self._handles = gpus, nvml, dict[str, Any]()

    def __call__(self, rank: int) -> int | None:
        """Of a rank; None where nobody says, as of MIG slices, and for good once NVML fails."""
        gpu = self._gpus.get(rank)
        if gpu is None or gpu.is_slice:
            return None
        try:
            handle = self._handles.get(gpu.uuid) or self._find(gpu)
            rates = ask(self._nvml, "DeviceGetUtilizationRates", handle)
        except Exception:  # it is lost, or the driver is being replaced: the workers will tell
            self._gpus = {}
            return None
        return None if rates is None else int(rates.gpu)

    def close(self) -> None:
        """Let NVML go."""
        if self._handles:
            self._handles = {}
            with suppress(Exception):
                self._nvml.nvmlShutdown()

    def _find(self, gpu: Gpu) -> Any:
        if not self._handles:
            self._nvml = self._nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        self._handles[gpu.uuid] = handle = self._nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        return handle
