"""The next attempt begins when the GPUs are free of the last one, or nobody can wait any longer."""

from __future__ import annotations

import pytest
from stand_ins import make_devices

from slipway.launch.attempt import gpu_use
from slipway.launch.attempt.gpu_use import PAUSE, wait_for_memory
from slipway.launch.resolve.devices import Devices

GIB = 1 << 30


def holding(*used: float) -> Devices:
    """GPUs with so many GiB in use."""
    found = make_devices(len(used))
    return found._replace(
        gpus=tuple(gpu._replace(used=int(much * GIB)) for gpu, much in zip(found.gpus, used, strict=True))
    )


class Clock:
    """Time that passes only while somebody waits, and a stop after some of it."""

    def __init__(self, stop: float = 1e9) -> None:
        self.now, self.stop = 0.0, stop

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.stop

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("before", "then", "stop", "seconds", "said"),
    [
        ([0, 0], [[0, 0.1]], 1e9, 0, []),  # what is left of the driver's own
        ([0, 0], [[0.5, 70], [0, 70], [0, 0]], 1e9, 2 * PAUSE, ["waiting for GPU 1: 70.0 GB of the last attempt are not free yet"]),
        ([3, 0], [[3.1, 0]], 1e9, 0, []),  # somebody else's, who was here before
        ([0], [[5]], 1e9, 60, ["waiting for GPU 0: 5.0 GB of the last attempt are not free yet"]),
        ([0], [[5]], 3, 3, ["waiting for GPU 0: 5.0 GB of the last attempt are not free yet"]),
        ([0], [[]], 1e9, 0, []),  # NVML tells nothing any more
        ([], [[70]], 1e9, 0, []),
    ],
)  # fmt: skip
def test_memory_of_the_last_attempt_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    before: list[float],
    then: list[list[float]],
    stop: float,
    seconds: float,
    said: list[str],
) -> None:
    clock, lines = Clock(stop), list[str]()
    monkeypatch.setattr(gpu_use, "time", clock)
    looks = [holding(*used) for used in then]

    def look() -> Devices:
        return looks.pop(0) if len(looks) > 1 else looks[0]

    wait_for_memory(holding(*before).gpus, look, clock, lines.append)
    assert (clock.now, lines) == (seconds, said)
