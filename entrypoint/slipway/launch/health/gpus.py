"""The driver and its GPUs, as NVML tells: memory errors, retired memory, clocks that the hardware holds down.

https://docs.nvidia.com/deploy/nvml-api/ has the functions and constants; any of them may be unsupported on a GPU, in a
container or with an old library, which is no error. NVML keeps no history of Xid errors: see kernel_log.py.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from slipway.launch.health.finding import ok, sick, skipped, warning
from slipway.launch.muster.card import Finding
from slipway.launch.resolve.advice import advise, means_cpu
from slipway.launch.resolve.devices import Devices, ask
from slipway.protocol.causes import OLDEST_DRIVER

UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the driver was loaded
CAUSES = (0, 1)  # NVML_PAGE_RETIREMENT_CAUSE_…: several single-bit errors, a double-bit error
CELSIUS = 0  # NVML_TEMPERATURE_GPU
# nvmlClocksEventReasons; idle clocks, clocks that somebody set and the power cap are as they should be.
HELD_DOWN = MappingProxyType(
    {
        0x08: "hardware slowdown (heat, power or an external signal)",
        0x20: "software thermal slowdown",
        0x40: "hardware thermal slowdown",
        0x80: "hardware power brake",
    }
)
RESET = "drain the node, then reset the GPU (nvidia-smi --gpu-reset -i {index}) or reboot"


@dataclass(frozen=True)
class GpuReading:
    """What NVML says of one GPU; None where it does not support the question. `gone` is why it cannot be asked at all.

    `rows` are remapped ones: whether a remapping is pending, and whether one failed. `reasons` is a bit mask.
    """

    index: int
    name: str = ""
    gone: str = ""
    uncorrected: int | None = None
    retired: int | None = None
    retiring: bool = False
    rows: tuple[bool, bool] = (False, False)
    reasons: int = 0
    celsius: int | None = None
    watts: float | None = None


def look_at_gpus(
    devices: Devices, environ: Mapping[str, str], nvml: Any = None, runtime: str = "host"
) -> Iterator[Finding]:
    """The driver's row, and the rows of each GPU that CUDA will see. `nvml` is for tests, `runtime` as in Host."""
    yield judge_driver(devices, environ, runtime)
    if devices.gpus:
        indices = sorted({gpu.index for gpu in devices.gpus})  # slices of a GPU share it
        for reading in read_gpus(nvml or importlib.import_module("pynvml"), indices):
            yield from judge_gpu(reading)


def judge_driver(devices: Devices, environ: Mapping[str, str], runtime: str = "host") -> Finding:
    """Whether there is a driver that works, and what it shows."""
    if devices.problem:
        mend = "the driver was updated under a running kernel: reboot" if "mismatch" in devices.problem.lower() else ""
        return sick("driver", devices.problem, mend or "look at nvidia-smi and dmesg on the node itself; reboot it")
    if not devices.driver:
        return skipped("driver", devices.reason)
    if _version(devices.driver) < _version(OLDEST_DRIVER):
        return sick(
            "driver", f"{devices.driver} is too old", f"update it on the host and reboot: CUDA 12 needs {OLDEST_DRIVER}"
        )
    if not devices.gpus:
        found = f"{devices.driver}; {devices.reason}"
        chosen = means_cpu(environ, environ.get("NPROC_PER_NODE", ""))
        return ok("driver", found) if chosen else warning("driver", found, advise("gpus", runtime))
    return ok("driver", f"{devices.driver}, {len(devices.gpus)} GPU{'s' if len(devices.gpus) > 1 else ''} visible")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def read_gpus(nvml: Any, indices: Iterable[int]) -> list[GpuReading]:
    """Ask NVML about GPUs by their number."""
    nvml.nvmlInit()
    try:
        return [_read_gpu(nvml, index) for index in indices]
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> GpuReading:
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        pages = [found for cause in CAUSES if (found := ask(nvml, "DeviceGetRetiredPages", gpu, cause)) is not None]
        rows = ask(nvml, "DeviceGetRemappedRows", gpu)
        reasons = ask(nvml, "DeviceGetCurrentClocksEventReasons", gpu)
        if reasons is None:  # its name before driver 535
            reasons = ask(nvml, "DeviceGetCurrentClocksThrottleReasons", gpu)
        milliwatts = ask(nvml, "DeviceGetPowerUsage", gpu)
        name = ask(nvml, "DeviceGetName", gpu)
        return GpuReading(
            index,
            name.decode() if isinstance(name, bytes) else str(name),
            uncorrected=ask(nvml, "DeviceGetTotalEccErrors", gpu, UNCORRECTED, VOLATILE),
            retired=sum(map(len, pages)) if pages else None,
            retiring=bool(ask(nvml, "DeviceGetRetiredPagesPendingStatus", gpu)),
            rows=(bool(rows[2]), bool(rows[3])) if rows else (False, False),
            reasons=reasons or 0,
            celsius=ask(nvml, "DeviceGetTemperature", gpu, CELSIUS),
            watts=None if milliwatts is None else milliwatts / 1e3,
        )
    except nvml.NVMLError as error:
        return GpuReading(index, gone=str(error))


def judge_gpu(gpu: GpuReading) -> Iterator[Finding]:
    """A row of facts, and one for each thing that is wrong."""
    what, reset = f"GPU {gpu.index}", RESET.format(index=gpu.index)
    if gpu.gone:
        yield sick(what, f"NVML answers: {gpu.gone}", reset)
        return
    facts = (
        (gpu.celsius, f"{gpu.celsius} °C"),
        (gpu.watts, f"{gpu.watts or 0:.0f} W"),
        (gpu.uncorrected, f"{gpu.uncorrected} uncorrected memory errors"),
        (gpu.retired, f"{gpu.retired} retired pages"),
    )
    yield ok(what, ", ".join([gpu.name, *(text for value, text in facts if value is not None)]))
    if gpu.uncorrected:
        yield sick(
            f"{what} memory",
            f"{gpu.uncorrected} uncorrected ECC errors since the driver was loaded",
            f"{reset}; if they come back, have the GPU replaced",
        )
    if gpu.rows[1]:
        yield sick(f"{what} memory", "a damaged row could not be remapped", "have the GPU replaced")
    if gpu.rows[0]:  # the driver keeps them out of use meanwhile (nvmlDeviceGetRemappedRows)
        yield warning(f"{what} memory", "damaged rows wait for a reset to be remapped", f"when it suits, {reset}")
    if gpu.retiring:
        yield warning(f"{what} memory", "damaged pages wait for a reset to be retired", reset)
    if held := [text for bit, text in HELD_DOWN.items() if gpu.reasons & bit]:
        yield warning(
            f"{what} clocks",
            f"held down: {', '.join(held)}",
            "look at cooling and power supply (nvidia-smi -q -d CLOCK)",
        )
