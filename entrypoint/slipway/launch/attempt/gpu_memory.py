"""GPU memory between two attempts: the driver may still hold that of processes that were killed, for seconds after their end,
and the next attempt would run out of it before its first step."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from slipway.launch.resolve.devices import Devices, Gpu

PATIENCE = 60.0  # s; what is held longer than that is held by somebody else, or for good
PAUSE = 0.5  # s between two looks
SLACK = 256 << 20  # bytes; less than a process needs that has but started CUDA


class Waiting(Protocol):
    """What is waited with: Stops."""

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a request to stop comes. Returns whether there is one."""


def wait_for_memory(
    before: Sequence[Gpu], look: Callable[[], Devices], stops: Waiting, say: Callable[[str], None]
) -> None:
    """Wait until none of the job's GPUs has more memory in use than `before` its first attempt; `look` reads the devices anew.

    At most PATIENCE long, or until a stop comes. Returns at once where there are no GPUs, or NVML tells nothing.
    """
    used = {gpu.uuid: gpu.used for gpu in before}
    told, until = False, time.monotonic() + PATIENCE
    while used and time.monotonic() < until:
        more, index = max(((gpu.used - used.get(gpu.uuid, gpu.used), gpu.index) for gpu in look().gpus), default=(0, 0))
        if more <= SLACK:
            return
        if not told:
            say(f"waiting for GPU {index}: {more / 2**30:.1f} GB of the last attempt are not free yet")
            told = True
        if stops.wait(PAUSE):
            return
