"""Stand-ins for the world around the launcher: GPUs, a host, NVML, cgroup trees; and the calls that tests repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipway.launch.attempt.gpu_events import NO_INSTANCE
from slipway.launch.resolve.catalog import find_workload
from slipway.launch.resolve.devices import Devices, Gpu
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.plan import Plan, make_plan
from slipway.launch.resolve.rdzv import Rdzv
from slipway.launch.resolve.runtimes import detect_runtime
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Topology, resolve_topology


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str


Slipway = Callable[..., Answer]  # the fixture of that name
FREE_PORT = 40_001  # what this host says is free


def make_devices(gpus: int = 0, cpus: float = 4.0, capability: tuple[int, int] = (9, 0), **more: Any) -> Devices:
    """A node with so many equal GPUs."""
    cards = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H100", capability) for index in range(gpus))
    return Devices(cards, cpus, driver="550.54" if gpus else "", **more)


def make_host(fqdn: str = "host", mended: Mapping[str, str] | None = None) -> Host:
    """A host that lacks nothing."""
    return Host(fqdn=fqdn, free_port=FREE_PORT, runtime="host", mended=mended or {})


def make_sources(environ: Mapping[str, str], options: Mapping[str, str] | None = None, **more: Any) -> Sources:
    """What a user gave: `options` by setting name, `env_file` as read."""
    return Sources(dict(options or {}), dict(environ), dict(more.pop("env_file", {})), **more)


def resolve(
    environ: Mapping[str, str],
    options: Mapping[str, str] | None = None,
    env_file: Mapping[str, str] | None = None,
    devices: Devices | None = None,
    fqdn: str = "host",
) -> Topology:
    """The topology of a node with this environment; without GPUs where no devices are given."""
    sources = make_sources(environ, options, env_file=env_file or {})
    host = make_host(fqdn)._replace(runtime=detect_runtime(environ, Path("/no-container")))
    return resolve_topology(sources, devices or make_devices(), host)


def plan_for(
    words: tuple[str, ...] = ("linear",),
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    mended: Mapping[str, str] | None = None,
    **more: Any,
) -> Plan:
    """The plan for the words after `slipway run`; `more` is `devices`, `rdzv` or `env_file`."""
    sources = make_sources(environ or {}, options, env_file=more.get("env_file", {}), rdzv=more.get("rdzv", Rdzv()))
    topology = resolve_topology(sources, more.get("devices") or make_devices(), make_host(mended=mended))
    workload, arguments = find_workload(words)
    return make_plan(topology, workload, arguments, sources)


class NvmlError(Exception):
    """As pynvml's: `value` is the number of the error."""

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text or f"error {value}")
        self.value = value


class FakeNvml:
    """The part of pynvml that the launcher calls. `cards`: see make_card."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND = 3, 9, 12
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self, *cards: Any, init_error: Exception | None = None, lost: bool = False, forbidden: tuple[int, ...] = ()
    ) -> None:
        self.cards = [SimpleNamespace(**card) for card in cards]
        self.init_error, self.lost, self.shut_down = init_error, lost, False
        self.forbidden = forbidden  # the numbers of cards that a cgroup keeps from this process

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error:
            raise self.init_error

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "550.54.15"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        if self.lost:
            raise NvmlError(15, "GPU is lost")
        if index in self.forbidden:
            raise NvmlError(4, "Insufficient Permissions")
        return self.cards[index]

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:  # noqa: N802
        return 8  # nvmlEventTypeXidCriticalError

    def nvmlDeviceGetName(self, handle: Any) -> str:  # noqa: N802
        return "NVIDIA H100 MIG 1g.10gb" if isinstance(handle, str) else str(handle.name)

    def nvmlDeviceGetCpuAffinity(self, handle: Any, words: int) -> list[int]:  # noqa: N802
        if handle.cores is None:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        mask = sum(1 << core for core in handle.cores)
        return [mask >> 64 * word & (1 << 64) - 1 for word in range(words)]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(used=1 << 30 if isinstance(handle, str) else handle.used)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> list[int]:  # noqa: N802
        return list(handle.capability)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:  # noqa: N802
        return handle if isinstance(handle, str) else str(handle.uuid)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:  # noqa: N802
        if handle.slices is None:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        enabled = int(isinstance(handle.slices, list))
        return [enabled, enabled]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, number: int) -> Any:  # noqa: N802
        if number >= len(handle.slices) or handle.slices[number] is None:
            raise NvmlError(6, "not found")
        return handle.slices[number]


def make_card(
    number: int,
    capability: tuple[int, int] = (9, 0),
    slices: Any = None,
    cores: Any = None,
    used: int = 0,
    name: str = "NVIDIA H100",
) -> Any:
    """One GPU for FakeNvml; its UUID begins with its number.

    `slices`: a list of the UUIDs of MIG slices, with None for a place without one; () where MIG is switched off, None
    where the GPU knows no MIG. `_as_parameter_` is its handle as a pointer, for ctypes. `cores` are those of its NUMA node, None where NVML cannot tell; `used` bytes of memory.
    """
    facts = {"name": name, "capability": capability, "slices": slices, "cores": cores, "used": used}
    return {"uuid": f"GPU-{number}a{number}b", "_as_parameter_": 1024 * (number + 1), **facts}


class Events(FakeNvml):
    """NVML with Xid events: delivers what is put into `events`, at once, and refuses with `refuses`."""

    def __init__(self, *cards: Any, refuses: Exception | None = None) -> None:
        super().__init__(*cards)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.refuses, self.waited = refuses, threading.Event()
        self.registered: list[str] = []
        self.asked: list[int] = []  # milliseconds of each wait
        self.open = self.freed = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:  # noqa: N802
        self.freed += 1

    def nvmlDeviceRegisterEvents(self, gpu: Any, kinds: int, events: str) -> None:  # noqa: N802
        assert (kinds, events) == (8, "set")
        if self.refuses:
            raise self.refuses
        self.registered.append(gpu.uuid)

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:  # noqa: N802
        self.waited.set()
        self.asked.append(milliseconds)
        try:
            found = self.events.get(timeout=milliseconds / 1e3)
        except queue.Empty:
            raise NvmlError(10, "Timeout") from None
        if isinstance(found, Exception):
            raise found
        return found


def event(device: Any, number: int, instance: int = NO_INSTANCE) -> Any:
    """An Xid error of a card, or of a MIG instance of it."""
    return SimpleNamespace(device=device, eventData=number, gpuInstanceId=instance)


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, for fake /proc and /sys trees."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
