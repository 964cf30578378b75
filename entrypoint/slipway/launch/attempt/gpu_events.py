"""Xid errors of the GPUs while an attempt runs. NVML delivers the critical ones to any process, and none of those before."""

import importlib
import threading
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
    """Listens in a thread of its own, between `open` and `close`. Without GPUs, or without NVML's events, it does nothing."""

    def __init__(self, gpus: Mapping[int, Gpu], clock: Clock = CLOCK, nvml: Any = None) -> None:
        """`gpus`: those of the ranks, as CUDA sees them; `nvml` is for tests."""
        self._gpus, self._clock, self._nvml = gpus, clock, nvml
        self._numbers: dict[str, int] = {}  # by UUID
        self._events: Any = None
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._listen, daemon=True)
        self._seen: list[XidSeen] = []

    def open(self) -> None:
        """Begin to listen."""
        if not self._gpus:
            return
        self._nvml = self._nvml or importlib.import_module("pynvml")
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlInit()
            try:
                self._register()
            except self._nvml.NVMLError:
                self._nvml.nvmlShutdown()
                return
            self._thread.start()

    def _register(self) -> None:
        self._events = self._nvml.nvmlEventSetCreate()
        for number in sorted({gpu.number for gpu in self._gpus.values()}):
            gpu = self._nvml.nvmlDeviceGetHandleByIndex(number)
            self._numbers[self._uuid(gpu)] = number
            self._nvml.nvmlDeviceRegisterEvents(gpu, XID, self._events)

    def _uuid(self, gpu: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(gpu)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, POLL)
            except self._nvml.NVMLError as error:
                if error.value == TIMEOUT:
                    continue
                return  # the driver is gone, or being replaced
            self._seen.append(self._read(event))

    def _read(self, event: Any) -> XidSeen:
        number = None
        with suppress(self._nvml.NVMLError):  # it cannot be asked any more
            number = self._numbers.get(self._uuid(event.device))
        instance = None if event.gpuInstanceId == NO_INSTANCE else event.gpuInstanceId
        ranks = tuple(sorted(rank for rank, gpu in self._gpus.items() if gpu.number == number))
        return XidSeen(self._clock.time(), int(event.eventData), number, instance, ranks)

    def close(self) -> tuple[XidSeen, ...]:
        """End it; what came."""
        if self._thread.ident:  # it was started
            self._stopping.set()
            self._thread.join(STUCK)
            if self._thread.is_alive():  # NVML is in use there
                return tuple(self._seen)
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
                self._nvml.nvmlShutdown()
        return tuple(self._seen)
