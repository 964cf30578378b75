"""How long this rank works on a step, without its waits for the others: it distinguishes a straggler from its victims.

A step ends on all ranks together, since each waits for the others' gradients. That wait is between two moments that can be
observed without changing a bit: the arrival of the last gradient, and the return of the backward pass. The rest is the rank's
own time.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from slipway.protocol.cgroups import cgroup_folders, count_cpus, read_kernel_file

REPORTED = 0.05  # of the time: less is no cause


class Moment(NamedTuple):
    """In seconds: the time, and for how long this thread was on a processor so far and waited for one that others used."""

    time: float
    ran: float
    waited: float


class HostClock:
    """The time of the host. Steady is what the thread that made this spends off the processors without waiting for one: asleep,
    or for a disk. How fast a processor is changes from moment to moment on a machine that others use, too.
    """

    def __init__(self) -> None:
        """A kernel that does not tell how long a thread waits for a processor leaves that out."""
        self._ran = time.pthread_getcpuclockid(threading.get_ident())
        self._schedule = -1
        with suppress(OSError):
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._schedule)

    def host(self) -> float:
        """The time of the host, in seconds since any moment."""
        return time.perf_counter()

    def now(self) -> Moment:
        """This moment."""
        words = os.pread(self._schedule, 64, 0).split() if self._schedule >= 0 else []
        waited = int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else 0.0
        return Moment(self.host(), time.clock_gettime(self._ran), waited)

    def seconds(self, earlier: Moment, later: Moment) -> float:
        """Return the seconds between two moments."""
        return later.time - earlier.time

    def steady(self, earlier: Moment, later: Moment) -> float:
        """Return the part of them that does not depend on the machine's other load."""
        return max(0.0, later.time - earlier.time - (later.ran - earlier.ran) - (later.waited - earlier.waited))


class DeviceClock:
    """The time of a GPU, all of it steady: a moment is when it has done all that it was told to do before."""

    def host(self) -> float:
        """The time of the host, in seconds since any moment."""
        return time.perf_counter()

    def now(self) -> torch.cuda.Event:
        """This moment. Waits for no GPU."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Return the seconds between two moments, once the later one has come."""
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3  # type: ignore[no-untyped-call]

    def steady(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Return the part of them that does not depend on the machine's other load."""
        return self.seconds(earlier, later)


StepClock = HostClock | DeviceClock


class Step(NamedTuple):
    """Moments of a step, the end of the one before among them; `data`: seconds that it waited for its data before it began."""

    before: Any
    begun: Any
    ready: Any
    back: Any
    ended: Any
    data: float


class Taken(NamedTuple):
    """Seconds per step: the median of what was a rank's own, that of its steady part, and the mean that it waited for data."""

    own: float
    steady: float
    data: float


class OwnTime:
    """The own time of each step of one rank, from `begin` to `end`, without what is between the last gradient and `go_on`.

    Waiting for data before the step counts too, as far as the device had nothing to do meanwhile.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], device: torch.device, clock: StepClock | None = None
    ) -> None:
        """Until `settle`, learn the order of the gradients. Without parameters nothing is timed.

        `clock`: by default that of the device.
        """
        self.clock: StepClock = clock or (DeviceClock() if device.type == "cuda" else HostClock())
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._last: torch.Tensor | None = None
        self._hooks = self._watch(self._parameters, self._learn)
        self._before: Any = None
        self._begun: Any = None
        self._ready: Any = None
        self._back: Any = None
        self._data = 0.0
        self._steps: list[Step] = []
        self.data = 0.0  # s that it waited for its data since the last step began

    def settle(self, *, all_of_them: bool) -> None:
        """From here on only the gradient that came last is looked at, or `all_of_them` where that is not always the same."""
        for hook in self._hooks:
            hook.remove()
        last = [each for each in self._parameters if all_of_them or each is self._last]
        self._hooks = self._watch(last, self._note)

    @staticmethod
    def _watch(parameters: Iterable[nn.Parameter], call: Callable[[torch.Tensor], None]) -> list[RemovableHandle]:
        return [
            parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]

    def _learn(self, parameter: torch.Tensor) -> None:
        self._last = parameter

    def _note(self, _: torch.Tensor) -> None:
        self._ready = self.clock.now()

    def begin(self) -> None:
        """A step begins."""
        if self._hooks:
            self._begun, self._ready = self.clock.now(), None
            self._data, self.data = self.data, 0.0

    def wait_for_data(self, ready: Callable[[], bool]) -> bool:
        """What `ready` returns; the time that it takes is waiting for data."""
        asked = self.clock.host()
        there = ready()
        self.data += self.clock.host() - asked
        return there

    def begin_last_part(self) -> None:
        """What follows is exchanged; the gradients before it were not."""
        self._ready = None

    def go_on(self) -> None:
        """All gradients of all ranks are here."""
        if self._hooks:
            self._back = self.clock.now()

    def end(self) -> None:
        """The step is done. It counts where its last gradient was seen."""
        if not self._hooks:
            return
        ended = self.clock.now()
        if self._ready is not None and self._before is not None:
            self._steps.append(Step(self._before, self._begun, self._ready, self._back, ended, self._data))
        self._before = ended

    def take(self) -> Taken:
        """Seconds per step since the last call; NaN without any. The newest step is left for the next call: a GPU may be at it
        still, and is not waited for.
        """
        done, self._steps = self._steps[:-1], self._steps[-1:]
        if not done:
            return Taken(math.nan, math.nan, 0.0)
        seconds, steady = self.clock.seconds, self.clock.steady
        waits = [min(step.data, seconds(step.before, step.begun)) for step in done]
        own, part = (
            median(
                measure(step.begun, step.ready) + measure(step.back, step.ended) + wait
                for step, wait in zip(done, waits, strict=True)
            )
            for measure in (seconds, steady)
        )
        return Taken(own, part, mean(waits))

    def drop(self) -> None:
        """Leave the steps so far out."""
        self._steps, self._before, self.data = [], None, 0.0


class Sample(NamedTuple):
    """What a process knew at a moment, in seconds: the time, how long it waited for a processor so far, and for its data since
    the sample before; and how many periods of its quota there were, and in how many of them it was held back.
    """

    time: float
    waited: float
    data: float
    periods: int
    throttled: int


class Causes:
    """What this process can see of why it is slow. A kernel without these files is not an error."""

    def __init__(self, device: torch.device, kept: int, now: Callable[[], float]) -> None:
        """Look back over so many samples. `now`: the host's time in seconds."""
        self._device, self._now = device, now
        self._samples: deque[Sample] = deque(maxlen=kept)
        self._folders = cgroup_folders(Path("/"), "cpu")

    def sample(self, data: float) -> None:
        """Take what there is to see now; `data`: seconds that it waited for its data since the last sample."""
        waited = read_kernel_file(Path("/proc/self/schedstat")).split()
        held = max((self._quota(folder) for folder in self._folders), key=lambda each: each[1], default=(0, 0))
        seconds = int(waited[1]) / 1e9 if len(waited) > 1 and waited[1].isdigit() else 0.0
        self._samples.append(Sample(self._now(), seconds, data, *held))

    def forget(self) -> None:
        """What was seen so far has nothing to do with what follows."""
        self._samples.clear()

    @staticmethod
    def _quota(folder: Path) -> tuple[int, int]:
        """Periods of a cgroup's quota, and those in which it was used up."""
        rows = dict(row for line in read_kernel_file(folder / "cpu.stat").splitlines() if len(row := line.split()) == 2)
        periods, throttled = (rows.get(name, "") for name in ("nr_periods", "nr_throttled"))
        return (int(periods), int(throttled)) if periods.isdigit() and throttled.isdigit() else (0, 0)

    def text(self) -> str:
        """Return what is known about the time between the first and the last sample; empty if nothing."""
        if len(self._samples) < 2:
            return ""
        first, last = self._samples[0], self._samples[-1]
        passed = max(last.time - first.time, 1e-9)
        shares = {
            "it waits for its data": sum(one.data for one in list(self._samples)[1:]) / passed,
            "it waits for a processor that others use": (last.waited - first.waited) / passed,
            f"its quota of {count_cpus():g} processors is used up": (last.throttled - first.throttled)
            / max(1, last.periods - first.periods),
        }
        causes = [f"{share:.0%} of the time {what}" for what, share in shares.items() if share > REPORTED]
        if self._device.type == "cuda":
            with suppress(Exception):  # torch asks NVML, which may not be there, or not answer in a container
                clock, heat = torch.cuda.clock_rate(self._device), torch.cuda.temperature(self._device)
                causes.append(f"its GPU runs at {clock} MHz and {heat} °C")
        return "; ".join(causes)
