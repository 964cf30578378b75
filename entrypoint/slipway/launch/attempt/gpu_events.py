"""Xid errors of the GPUs while an attempt runs. NVML delivers the critical ones to any process, and none of those before."""

import ctypes
import importlib
import threading
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from slipway.launch.resolve.devices import Gpu
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.printable import rank_ranges
from slipway.protocol.xids import describe

XID = 8  # nvmlEventTypeXidCriticalError
TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event came
POLL = 200  # ms of one wait; the thread ends after it
KEPT = 10_000  # errors; and at the end so many are taken that wait already
STUCK = 2.0  # seconds; a driver that lost its GPU may never answer, and the verdict does not wait for it
NO_INSTANCE = 0xFFFFFFFF  # of MIG


class XidSeen(NamedTuple):
    """An error: when it came (Unix seconds), its number, and whose it is: NVML's index, or None; the MIG instance, or None."""

    time: float
    number: int
    gpu: int | None
    instance: int | None = None
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        """How people read it."""
        what = "a GPU that NVML does not name" if self.gpu is None else f"GPU {self.gpu}"
        what += f", MIG instance {self.instance}" if self.instance is not None else ""
        ranks = f" (rank{'s' * (len(self.ranks) > 1)} {rank_ranges(self.ranks)})" if self.ranks else ""
        return f"{what}{ranks}: {describe(self.number)}"


class GpuEvents:
    """Listens in a thread of its own, between `open` and `close`. Without GPUs, or without NVML's events, it does nothing.

    `counts`: how many errors came so far, by GPU and number.
    """

    def __init__(self, gpus: Mapping[int, Gpu], clock: Clock = CLOCK, nvml: Any = None) -> None:
        """`gpus`: those of the ranks, as CUDA sees them; `nvml` is for tests."""
        self._gpus, self._clock, self._nvml = gpus, clock, nvml
        self._numbers: dict[int | str | None, int] = {}  # by handle and by UUID
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self._seen = deque[XidSeen](maxlen=KEPT)
        self.counts = Counter[tuple[int | None, int]]()

    def open(self) -> None:
        """Begin to listen; where no thread can be started, nothing is heard."""
        if self._gpus:
            with suppress(RuntimeError):
                self._thread.start()

    def close(self) -> tuple[XidSeen, ...]:
        """End it; what came, oldest first."""
        self._stopping.set()
        if self._thread.ident:  # it was started
            self._thread.join(STUCK)
        return tuple(self._seen)

    def _run(self) -> None:
        self._nvml = self._nvml or importlib.import_module("pynvml")
        with suppress(self._nvml.NVMLError):  # no events here; or the driver is gone, or being replaced
            self._nvml.nvmlInit()
            try:
                self._listen(self._nvml.nvmlEventSetCreate())
            finally:
                self._nvml.nvmlShutdown()

    def _listen(self, events: Any) -> None:
        try:
            for number in sorted({gpu.number for gpu in self._gpus.values()}):
                gpu = self._nvml.nvmlDeviceGetHandleByIndex(number)
                self._numbers |= {_address(gpu): number, self._uuid(gpu): number}
                self._nvml.nvmlDeviceRegisterEvents(gpu, XID, events)
            while not self._stopping.is_set():
                self._take(events, POLL)
            any(not self._take(events, 0) for _ in range(KEPT))  # those that wait already
        finally:
            self._nvml.nvmlEventSetFree(events)

    def _take(self, events: Any, milliseconds: int) -> bool:
        """Wait for an error; whether there was one."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(events, milliseconds)
        except self._nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            return False
        seen = self._read(event)
        self._seen.append(seen)
        self.counts[seen.gpu, seen.number] += 1
        return True

    def _read(self, event: Any) -> XidSeen:
        number = self._numbers.get(_address(event.device))  # one that fell off the bus cannot be asked any more
        with suppress(self._nvml.NVMLError):
            number = self._numbers.get(self._uuid(event.device)) if number is None else number
        instance = None if event.gpuInstanceId == NO_INSTANCE else event.gpuInstanceId
        ranks = tuple(sorted(rank for rank, gpu in self._gpus.items() if gpu.number == number))
        return XidSeen(self._clock.time(), int(event.eventData), number, instance, ranks)

    def _uuid(self, gpu: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(gpu)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _address(gpu: Any) -> int | None:
    """NVML's handle of a GPU, a pointer, as a number."""
    return ctypes.cast(gpu, ctypes.c_void_p).value
