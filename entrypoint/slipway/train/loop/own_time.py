"""How long this rank works on a step by itself, without what it waits for the others: what tells a straggler from its victims.

A step ends on all ranks together, since each waits for the others' gradients. That wait lies between two moments that can be
seen without changing a bit: the last gradient is there, and the backward pass returns. What is left is the rank's own.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from torch import nn

from slipway.protocol.cgroups import cgroup_folders, count_cpus, read_kernel_file

TOLD = 0.05  # of the time: less is no cause


class Clock(Protocol):
    """Moments, and the seconds between two of them."""

    def now(self) -> Any:
        """This moment. Waits for no GPU."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """What lies between two, the later of which may be waited for."""


class HostClock:
    """The time of the host."""

    def now(self) -> float:
        """See Clock."""
        return time.perf_counter()

    def seconds(self, earlier: float, later: float) -> float:
        """See Clock."""
        return later - earlier


class DeviceClock:
    """The time of a GPU: a moment is when it has done all that it was told to do before."""

    def now(self) -> torch.cuda.Event:
        """See Clock."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """See Clock."""
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3  # type: ignore[no-untyped-call]


class OwnTime:
    """The own time of each step of one rank, from `begin` to `end`, without what lies between the last gradient and `go_on`."""

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Until `settle` the order in which gradients come is learnt."""
        self._clock: Clock = DeviceClock() if device.type == "cuda" else HostClock()
        self._last: nn.Parameter | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._learn)  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad
        ]
        self._begun: Any = None
        self._ready: Any = None
        self._back: Any = None
        self._steps: list[tuple[Any, Any, Any, Any]] = []
        self.data = 0.0  # s that it waited for its data since `take`

    def settle(self) -> None:
        """From here on only the gradient that came last is looked at."""
        for hook in self._hooks:
            hook.remove()
        last = [self._last] if self._last is not None else []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for parameter in last
        ]

    def _learn(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self._last = parameter

    def _note(self, _: torch.Tensor) -> None:
        self._ready = self._clock.now()

    def begin(self) -> None:
        """A step begins."""
        self._begun, self._ready = self._clock.now(), None

    def go_on(self) -> None:
        """All gradients of all ranks are here."""
        self._back = self._clock.now()

    def end(self) -> None:
        """The step is done. It counts where its last gradient was seen."""
        if self._ready is not None:
            self._steps.append((self._begun, self._ready, self._back, self._clock.now()))

    def take(self) -> float:
        """Seconds per step: the median of the steps since the last call, and what it waited for data; NaN without any. The newest
        step is left for the next call: a GPU may be at it still, and is not waited for.
        """
        done, newest = self._steps[:-1], self._steps[-1:]
        each = [
            self._clock.seconds(begun, ready) + self._clock.seconds(back, ended) for begun, ready, back, ended in done
        ]
        found = median(each) + self.data / len(each) if each else math.nan
        self._steps, self.data = newest, 0.0
        return found

    def drop(self) -> None:
        """Leave the steps so far out."""
        self._steps, self.data = [], 0.0


class Causes:
    """What this process can see of why it is slow."""

    def __init__(self, device: torch.device, kept: int) -> None:
        """Look back over so many looks."""
        self._device = device
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=kept)
        self._data = deque[float](maxlen=kept)
        self._quota = next(iter(cgroup_folders(Path("/"), "cpu")), Path("/")) / "cpu.stat"

    def look(self, data: float) -> None:
        """Take what there is to see now; `data`: seconds that it waited for its data since the last look."""
        waited = read_kernel_file(Path("/proc/self/schedstat")).split()
        stat = dict(line.split() for line in read_kernel_file(self._quota).splitlines())
        throttled = int(stat.get("throttled_usec", 0)) / 1e6 + int(stat.get("throttled_time", 0)) / 1e9  # of v2, of v1
        self._looks.append((time.monotonic(), int(waited[1]) / 1e9 if len(waited) > 1 else 0.0, throttled))
        self._data.append(data)

    def text(self) -> str:
        """What is known about the time between the first and the last look; empty where that is nothing."""
        passed, waited, throttled = (
            after - before for before, after in zip(self._looks[0], self._looks[-1], strict=True)
        )
        shares = {
            "it waits for its data": sum(list(self._data)[1:]) / max(passed, 1e-9),
            "it waits for a processor that others use": waited / max(passed, 1e-9),
            f"its quota of {count_cpus():g} processors is used up": throttled / max(passed, 1e-9),
        }
        told = [f"{share:.0%} of the time {what}" for what, share in shares.items() if share > TOLD]
        if self._device.type == "cuda":
            with suppress(Exception):  # torch asks NVML, which may not be there, or not answer in a container
                clock, heat = torch.cuda.clock_rate(self._device), torch.cuda.temperature(self._device)
                told.append(f"its GPU runs at {clock} MHz and {heat} °C")
        return "; ".join(told)
