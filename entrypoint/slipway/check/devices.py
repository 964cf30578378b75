"""The driver, the GPUs, their links and the InfiniBand adapters, as NVML, the kernel's log and /sys report them.

https://docs.nvidia.com/deploy/nvml-api/ has NVML's functions and constants. A GPU, a container or an old library may not support
any of them, which is no error. NVML keeps no history of Xid errors; the kernel's log has them.
"""

import ctypes
import importlib
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipway.check.finding import misconfigured, ok, sick, skipped, warning
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.advice import advise, means_cpu
from slipway.launch.resolve.devices import Devices, ask
from slipway.launch.resolve.packages import locate_module, read_cuda
from slipway.protocol import xids as xids_table
from slipway.protocol.cgroups import read_kernel_file
from slipway.protocol.printable import counted
from slipway.protocol.variants import advise_variant, fitting, why_unusable

UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the driver was loaded
CAUSES = (0, 1)  # NVML_PAGE_RETIREMENT_CAUSE_…: several single-bit errors, a double-bit error
CELSIUS = 0  # NVML_TEMPERATURE_GPU
XIDS = 8  # nvmlEventTypeXidCriticalError
# nvmlClocksEventReasons; idle clocks, clocks set by a user and the power cap are no faults.
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
    """What NVML reports of one GPU; None where it does not support the question. `gone` is why it cannot be asked at all.

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
    yield judge_driver(devices, environ, runtime, read_cuda(locate_module("torch")))
    if devices.gpus:
        indices = sorted({gpu.number for gpu in devices.gpus})  # slices of a GPU share it
        nvml = nvml or importlib.import_module("pynvml")
        for reading in read_gpus(nvml, indices):
            yield from judge_gpu(reading)
        yield from look_at_events(nvml, indices)


def look_at_events(nvml: Any, indices: Sequence[int]) -> Iterator[Finding]:
    """A row where NVML does not deliver Xid errors of a GPU, as in some clouds: a job cannot report them."""
    nvml.nvmlInit()
    try:
        gpus = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in indices}
        silent = [
            index for index, gpu in gpus.items() if not (ask(nvml, "DeviceGetSupportedEventTypes", gpu) or 0) & XIDS
        ]
    except nvml.NVMLError:  # its own row says so
        return
    finally:
        nvml.nvmlShutdown()
    if silent:
        yield skipped(
            "Xid events", f"NVML delivers none of GPU {', '.join(map(str, silent))}: jobs do not report Xid errors"
        )


def judge_driver(
    devices: Devices,
    environ: Mapping[str, str],
    runtime: str = "host",
    cuda: str | None = None,
    machine: str = platform.machine(),
) -> Finding:
    """Whether there is a driver that works with this PyTorch, what it shows, and which images fit.

    `cuda` is PyTorch's, as read_cuda returns it; `machine` the processor.
    """
    if devices.problem:
        mend = "the driver was updated under a running kernel: reboot" if "mismatch" in devices.problem.lower() else ""
        return sick("driver", devices.problem, mend or "look at nvidia-smi and dmesg on the node itself; reboot it")
    if not devices.driver:
        return skipped("driver", devices.reason)
    chosen = means_cpu(environ, environ.get("NPROC_PER_NODE", ""))
    if trouble := judge_cuda(devices, cuda, machine, chosen):
        return trouble
    if not devices.gpus:
        found = f"{devices.driver}; {devices.reason}"
        return ok("driver", found) if chosen else warning("driver", found, advise("gpus", runtime))
    visible = f"{devices.driver}, {len(devices.gpus)} GPU{'s' if len(devices.gpus) > 1 else ''} visible"
    fits = fitting(devices.driver, _names(devices), machine)
    return ok("driver", f"{visible}; images that fit: {' or '.join(map(str, fits)) or 'none'}")


def judge_cuda(devices: Devices, cuda: str | None, machine: str, chosen: bool) -> Finding | None:
    """The row where this PyTorch does not run on this driver or these GPUs; None where it does.

    Without a PyTorch that says its CUDA version, only a driver that is too old for every image is wrong. `chosen`: the CPU is.
    """
    gpus = _names(devices)
    reason = why_unusable(cuda, devices.driver, gpus, machine)
    if not reason or (cuda == "" and chosen):
        return None
    report = misconfigured if cuda == "" else sick
    return report("driver", reason, advise_variant(devices.driver, gpus, machine))


def _names(devices: Devices) -> list[tuple[str, tuple[int, int]]]:
    return [(gpu.name, gpu.capability) for gpu in devices.gpus]


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
        (gpu.uncorrected, counted(gpu.uncorrected or 0, "uncorrected memory error")),
        (gpu.retired, counted(gpu.retired or 0, "retired page")),
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
        yield warning(
            f"{what} memory", "damaged rows wait for a reset to be remapped", f"at a convenient time, {reset}"
        )
    if gpu.retiring:
        yield warning(f"{what} memory", "damaged pages wait for a reset to be retired", reset)
    if held := [text for bit, text in HELD_DOWN.items() if gpu.reasons & bit]:
        yield warning(
            f"{what} clocks",
            f"throttled: {', '.join(held)}",
            "look at cooling and power supply (nvidia-smi -q -d CLOCK)",
        )


SPEED = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: MB/s of each active NVLink in one direction
MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS
# GB/s of one lane in one direction by generation: PCI-SIG's transfer rates (2.5, 5, 8, 16, 32, 64 GT/s), times 8/10 in the
# first two for their code, 128/130 in the next three, and 242/256 in the last for its flits.
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def describe_links(devices: Devices, nvml: Any = None) -> str:
    """The links of the first GPU in words, with GB/s in one direction; empty where NVML has no answer. `nvml` is for tests."""
    if not devices.gpus:
        return ""
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(devices.gpus[0].number)
            return _nvlinks(nvml, gpu) or _pcie(nvml, gpu)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return ""


def _nvlinks(nvml: Any, gpu: Any) -> str:
    active = 0
    for link in range(MOST_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(gpu, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # this GPU has no more of them, or none
            break
    if not active:
        return ""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [SPEED])
    told = answer.nvmlReturn == nvml.NVML_SUCCESS and answer.value.uiVal
    return f"{active} NVLinks, {active * answer.value.uiVal / 1e3:.0f} GB/s each way" if told else f"{active} NVLinks"


def _pcie(nvml: Any, gpu: Any) -> str:
    generation, width = nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
    rate = f", {LANE[generation] * width:.0f} GB/s each way" if generation in LANE else ""
    return f"PCIe {generation}.0 x{width}{rate}"


KMSG = Path("/dev/kmsg")
RECORD = 8192  # bytes; the kernel gives one record per read and refuses smaller buffers
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)(?:, (.*))?")
OFF = re.compile(
    r"NVRM: GPU (?:at PCI:)?([\da-fA-F:.]+):? (?:GPU )?has fallen off the bus"
)  # said without a number, too
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([^)]+)\): (\d+), (Non-fatal|Fatal), (.*)")
KILL = re.compile(r"[Oo]ut of memory: Killed process (\d+) \(([^)]*)\)")
SEGFAULT = re.compile(r"(\S+)\[(\d+)\]: segfault at .* in (libnccl\.so[\w.]*)\[")


@dataclass(frozen=True)
class Xid:
    """An error that the NVIDIA driver wrote into the kernel's log: seconds since the machine started, the GPU's PCI address, the
    error's number (protocol/xids.py) and the driver's text.
    """

    at: float
    pci: str
    number: int
    text: str


def look_at_kernel_log(log: Path = KMSG) -> Iterator[Finding]:
    """The row about Xid errors."""
    try:
        records = read_kernel_log(log)
    except OSError as error:
        reason = (
            f"{log} cannot be read ({error.strerror}), which needs privileges; on the node itself: dmesg | grep Xid"
        )
        yield skipped("Xid errors", reason)
        return
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    yield judge_xids(find_xids(records), now)
    yield from judge_other_records(records, now)


def read_kernel_log(log: Path = KMSG) -> list[str]:
    """All records that the kernel still has, without waiting for more. Raises OSError."""
    records: list[str] = []
    file = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(file, RECORD)
            except BrokenPipeError:  # overwritten meanwhile: the next read returns the oldest one left
                continue
            except BlockingIOError:
                return records
            if not record:
                return records
            records.append(record.decode(errors="replace"))
    finally:
        os.close(file)


def find_xids(records: Sequence[str]) -> list[Xid]:
    """The Xid errors among records of the form `level,number,microseconds,flags;text`."""
    found = []
    for at, text in _texts(records):
        if match := XID.search(text):
            found.append(Xid(at, match[1], int(match[2]), (match[3] or "").strip()))
        elif match := OFF.search(text):  # beside its Xid, or in its place
            pci = match[1].rpartition(".")[0] or match[1]
            if not any(xid.number == 79 and xid.pci == pci for xid in found):
                found.append(Xid(at, pci, 79, "GPU has fallen off the bus."))
    return found


def _texts(records: Sequence[str]) -> Iterator[tuple[float, str]]:
    """When records were written, in seconds since the machine started, and the first line of each: the second are its keys."""
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit():
            yield int(fields[2]) / 1e6, text.partition("\n")[0]


def judge_other_records(records: Sequence[str], now: float) -> Iterator[Finding]:
    """Rows about NVSwitches and what the kernel did to processes, none where there is nothing."""
    texts = [*_texts(records)]
    switches = [(at, match) for at, text in texts if (match := SXID.search(text))]
    if fatal := [(at, match) for at, match in switches if match[3] == "Fatal"]:
        at, last = fatal[-1]
        found = f"{len(fatal)} fatal; the last {_ago(at, now)}: SXid {last[2]} of {last[1]}: {last[4][:160]}"
        yield warning(
            "NVSwitch errors", found, "look at the fabric manager's log; reset the GPUs and the switches, or reboot"
        )
    elif switches:
        yield ok("NVSwitch errors", f"{len(switches)}, none of them fatal")
    # Whose they were is not known, so they are facts.
    if kills := [(at, match) for at, text in texts if (match := KILL.search(text))]:
        at, last = kills[-1]
        yield ok("out of memory", f"processes killed: {len(kills)}; the last {_ago(at, now)}: {last[2]} ({last[1]})")
    if faults := [(at, match) for at, text in texts if (match := SEGFAULT.search(text))]:
        at, last = faults[-1]
        yield ok("NCCL", f"crashes in {last[3]}: {len(faults)}; the last {_ago(at, now)}: {last[1]} ({last[2]})")


def _ago(at: float, now: float) -> str:
    return f"{max(0.0, now - at) / 3600:.1f} hours ago"


def judge_xids(xids: Sequence[Xid], now: float) -> Finding:
    """One row; `now` in seconds since the machine started."""
    serious = [xid for xid in xids if xids_table.is_serious(xid.number, xid.text)]
    if not serious:
        others = sorted({xid.number for xid in xids})
        more = f"; {len(xids)} of programs, or corrected (numbers {', '.join(map(str, others))})" if xids else ""
        return ok("Xid errors", f"none of hardware or driver in the kernel's log{more}")
    last = serious[-1]
    numbers = ", ".join(str(number) for number in sorted({xid.number for xid in serious}))
    cause = next((xid for xid in reversed(serious) if xid.number != 154), last)  # 154 sums it up
    return warning(
        "Xid errors",
        f"{len(serious)} in the kernel's log (numbers {numbers}); the last {_ago(last.at, now)}: "
        f"Xid {last.number} of {last.pci}: {last.text[:160]}",
        f"{xids_table.action(cause.number, cause.pci)} (https://docs.nvidia.com/deploy/xid-errors/)",
    )


ROW, LIBRARY = "InfiniBand", "libibverbs.so.1"


def look_at_infiniband(
    runtime: str, root: Path = Path("/"), load: Callable[[str], object] = ctypes.CDLL
) -> Iterator[Finding]:
    """The row about InfiniBand and RoCE adapters, none where the host has none: whether NCCL can use them from here.
    If it cannot, it silently uses TCP, which is many times slower.

    /sys shows adapters in any container, but their device files have to be passed to it, and libibverbs opens them
    (https://docs.kernel.org/infiniband/user_verbs.html). The limit on locked memory has a row of its own (machine.py). `runtime`
    as in Host; `root` and `load` are for tests.
    """
    adapters = sorted((root / "sys/class/infiniband").glob("*"))
    if not adapters:
        return
    names = ", ".join(adapter.name for adapter in adapters)
    files = sorted((root / "dev/infiniband").glob("uverbs*"))
    if not files:
        found = f"this host has {names}, but /dev/infiniband does not exist here: NCCL uses TCP"
        yield warning(ROW, found, advise("InfiniBand", runtime))
    elif not all(os.access(file, os.R_OK | os.W_OK) for file in files):
        found = f"{names}: user {os.getuid()} may not open {files[0].name} in /dev/infiniband: NCCL uses TCP"
        yield warning(
            ROW,
            found,
            "allow everyone to read and write /dev/infiniband/uverbs* on the host, as rdma-core's udev rules do",
        )
    elif not any(
        "ACTIVE" in read_kernel_file(state) for adapter in adapters for state in adapter.glob("ports/*/state")
    ):
        yield warning(
            ROW, f"{names}: no port is active: NCCL uses TCP", "look at ibstat, the cable and the subnet manager"
        )
    elif not _loads(load):
        yield warning(
            ROW, f"{names}, but {LIBRARY} is missing: NCCL uses TCP", "apt-get install libibverbs1 ibverbs-providers"
        )
    else:
        yield ok(ROW, f"{names}: device files and library are available{_describe_ports(adapters)}")


def _describe_ports(adapters: Iterable[Path]) -> str:
    """Facts for people: how many ports are active at which rate, and which are not. A port may be without a cable on purpose."""
    ports = [port for adapter in adapters for port in sorted(adapter.glob("ports/*"))]
    idle = [port.parts[-3] for port in ports if "ACTIVE" not in read_kernel_file(port / "state")]
    rates = Counter(read_kernel_file(port / "rate") for port in ports if port.parts[-3] not in idle)
    told = [f"{count} at {rate.partition(' (')[0]}" for rate, count in rates.items() if rate]
    return "; ports: " * bool(told or idle) + ", ".join([*told, *([f"not active: {' '.join(idle)}"] if idle else [])])


def _loads(load: Callable[[str], object]) -> bool:
    try:
        load(LIBRARY)
    except OSError:
        return False
    return True
