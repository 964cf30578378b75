"""How busy the GPUs of this node are while an attempt runs, and when their memory is free again after it."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from slipway.launch.resolve.devices import Devices, Gpu, ask, read_devices
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.placement import place_gpus

PATIENCE = 60.0  # s; what is held longer than that is held by other processes, or for good
PAUSE = 0.5  # s between polls
SLACK = 256 << 20  # bytes; less than a process needs that has but started CUDA


class GpuUse:
    """Percent of the time in which a rank's GPU was in use, for `slipway status`. NVML measures over 1/6 to 1 s."""

    def __init__(self, gpus: Mapping[int, Gpu], nvml: Any = None) -> None:
        """`gpus` of the ranks, none on the CPU; `nvml` is for tests."""
        self._gpus, self._nvml, self._handles = gpus, nvml, dict[str, Any]()

    def __call__(self, rank: int) -> int | None:
        """Of a rank; None where it is unknown, as of MIG slices, and for good once NVML fails."""
        gpu = self._gpus.get(rank)
        if gpu is None or gpu.is_slice:
            return None
        try:
            handle = self._handles.get(gpu.uuid) or self._find(gpu)
            rates = ask(self._nvml, "DeviceGetUtilizationRates", handle)
        except Exception:  # it is lost, or the driver is being replaced: the workers will report it
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
        self._handles[gpu.uuid] = handle = self._nvml.nvmlDeviceGetHandleByIndex(gpu.number)
        return handle


class Waiter(Protocol):
    """What is waited with: Stops."""

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a request to stop comes. Returns whether there is one."""


def wait_for_gpus(job: Job, stops: Waiter, say: Callable[[str], None]) -> None:
    """Wait until the GPUs of a job have their memory back, between two attempts."""
    topology = job.plan.topology
    used = place_gpus(topology.gpus, topology.processes_per_node)
    wait_for_memory(used, partial(read_devices, job.environ), stops, say)


def wait_for_memory(
    before: Sequence[Gpu], look: Callable[[], Devices], stops: Waiter, say: Callable[[str], None]
) -> None:
    """Wait until none of the job's GPUs has more memory in use than `before` its first attempt; `look` reads the devices again.

    The driver may hold the memory of processes that were killed for seconds after their end, and the next attempt would run out
    of memory before its first step.

    At most PATIENCE long, or until a stop comes. Returns at once where there are no GPUs, or NVML has no answer.
    """
    used = {gpu.uuid: gpu.used for gpu in before}
    told, until = False, time.monotonic() + PATIENCE
    while used and time.monotonic() < until:
        more, index = max(
            ((gpu.used - used.get(gpu.uuid, gpu.used), gpu.number) for gpu in look().gpus), default=(0, 0)
        )
        if more <= SLACK:
            return
        if not told:
            say(f"waiting for GPU {index}: {more / 2**30:.1f} GB of the last attempt are not free yet")
            told = True
        if stops.wait(PAUSE):
            return
