"""This node's GPUs (through NVML, as CUDA will see them), and how much CPU this process may use. No torch.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it: indices, GPU or MIG UUIDs (or a unique beginning of one). The first entry that
names nothing ends the list, and a device named twice leaves none (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars).
"""

import ctypes
import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slipway.protocol.cgroups import count_cpus


class Gpu(NamedTuple):
    """One device as CUDA counts them: a GPU, or a MIG slice of one. `capability` is the compute capability.

    `number` is NVML's index of the GPU, as nvidia-smi shows it; slices share it. `cores` are those of its NUMA node that this
    process may use, none where that is unknown or means all or none of them. `used` is the memory in use, in bytes.
    """

    number: int
    uuid: str
    name: str
    capability: tuple[int, int]
    cores: tuple[int, ...] = ()
    used: int = 0

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice; CUDA shows a process no more than one of them."""
        return self.uuid.startswith("MIG-")


class Devices(NamedTuple):
    """What this node has. `reason` says why there is no GPU, `problem` why those that are there cannot be used.

    `hidden`: they are withheld on purpose, and the CPU is meant.
    """

    gpus: tuple[Gpu, ...] = ()
    cpus: float = 1.0
    driver: str = ""
    reason: str = "no NVIDIA driver"
    problem: str = ""
    hidden: bool = False


def read_devices(environ: Mapping[str, str], nvml: Any = None, root: Path = Path("/")) -> Devices:
    """Look at this node. `nvml` and `root` (of the file system) are for tests."""
    cpus, wanted = count_cpus(root), environ.get("CUDA_VISIBLE_DEVICES")
    files = sorted(file.name for file in (root / "dev").glob("nvidia[0-9]*"))
    withheld = environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none")
    # The container device interface sets void, too, but brings the devices itself; /dev/dxg is WSL2's.
    if withheld and not files and not (root / "dev/dxg").exists():
        return Devices(cpus=cpus, reason=f"NVIDIA_VISIBLE_DEVICES={environ['NVIDIA_VISIBLE_DEVICES']}", hidden=True)
    nvml = nvml or _load_nvml()
    found = _ask_driver(nvml, wanted) if nvml else Devices(problem=_misplaced(root))
    if (withheld and nvml is None) or hides_all(wanted):
        return found._replace(cpus=cpus, problem="", hidden=True)
    if files and not found.gpus and not found.problem:  # training on the CPU is not what is wanted there
        found = found._replace(problem=f"/dev/{files[0]} is there, but {found.reason}")
    return found._replace(cpus=cpus)


def hides_all(wanted: str | None) -> bool:
    """Whether a CUDA_VISIBLE_DEVICES begins with what names no device and never will: it is empty, -1, void, NoDevFiles."""
    first = (wanted or "").partition(",")[0].strip()
    return wanted is not None and not (first.isdecimal() or first.startswith(("GPU", "MIG")))


LIBRARY = "libnvidia-ml.so.1"
# Where a driver may be that the linker does not find: GKE mounts it there and runs no ldconfig, WSL2 brings the one of Windows.
DRIVER_FOLDERS = ("usr/local/nvidia/lib64", "usr/lib/wsl/lib")


def _load_nvml() -> Any:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return None  # and the 20 ms that importing pynvml takes are saved
    return importlib.import_module("pynvml")


def _misplaced(root: Path) -> str:
    """Where a driver is that the linker does not find, and what to type; empty where there is none."""
    folder = next((folder for folder in DRIVER_FOLDERS if (root / folder / LIBRARY).exists()), None)
    return f"the driver is in /{folder}, which is not searched: export LD_LIBRARY_PATH=/{folder}" if folder else ""


def _ask_driver(nvml: Any, wanted: str | None) -> Devices:
    """What the driver shows of this node, but for its CPUs."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = error.value in (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        return Devices(reason=f"NVML answers: {error}", problem="" if absent else f"NVML answers: {error}")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus, forbidden = _list_gpus(nvml)
        if forbidden and not gpus:
            return Devices(driver=driver, reason=f"this process may use none of the GPUs here: {forbidden}")
        visible, reason = select_visible(gpus, wanted)
        return Devices(visible, driver=driver, reason=reason)
    except nvml.NVMLError as error:
        return Devices(reason=f"NVML answers: {error}", problem=f"NVML answers: {error}")
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION


def _list_gpus(nvml: Any) -> tuple[list[Gpu], str]:
    """The devices that this process may use, and what NVML answers of others, which a cgroup keeps from it.

    NVML counts those, CUDA does not see them (https://docs.nvidia.com/deploy/nvml-api/, nvmlDeviceGetCount_v2).
    """
    gpus, forbidden, allowed = [], "", os.sched_getaffinity(0)
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus += _read_gpu(nvml, index, allowed)
        except nvml.NVMLError as error:
            if error.value != NO_PERMISSION:
                raise
            forbidden = str(error)
    return gpus, forbidden


def _read_gpu(nvml: Any, index: int, allowed: set[int]) -> list[Gpu]:
    """A GPU, or its MIG slices."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = map(int, nvml.nvmlDeviceGetCudaComputeCapability(handle))
    words = ask(nvml, "DeviceGetCpuAffinity", handle, max(allowed) // 64 + 1)
    cores = read_cores(words or (), allowed)
    name, slices = nvml.nvmlDeviceGetName(handle), _list_slices(nvml, handle)
    return [
        Gpu(
            index,
            uuid,
            _text(ask(nvml, "DeviceGetName", device) or name),
            (major, minor),
            cores,
            getattr(ask(nvml, "DeviceGetMemoryInfo", device), "used", 0),
        )
        for uuid, device in ({_text(nvml.nvmlDeviceGetUUID(handle)): handle} if slices is None else slices).items()
    ]


def _list_slices(nvml: Any, handle: Any) -> dict[str, Any] | None:
    """A GPU's MIG slices by their UUIDs; None where it is not split."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return None  # this GPU knows no MIG
    slices = {}
    for number in range(count):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            slices[_text(nvml.nvmlDeviceGetUUID(device))] = device
        except nvml.NVMLError:
            continue  # a place without a slice
    return slices


GONE = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """What an NVML function answers, None where it is not supported here. Raises NVMLError where the GPU is gone."""
    function = getattr(nvml, f"nvml{name}", None)
    try:
        return function(*arguments) if function else None
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise
        return None


def read_cores(words: Iterable[int], allowed: set[int]) -> tuple[int, ...]:
    """The cores in NVML's set, words of 64 bits each, that this process may use; none where these are all or none."""
    near = {64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1}
    return tuple(sorted(near & allowed)) if not allowed <= near else ()


def select_visible(gpus: list[Gpu], wanted: str | None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that CUDA will show for this CUDA_VISIBLE_DEVICES, and why there is none."""
    if wanted is None:
        return tuple(gpus), "the driver shows none"
    numbers = list(dict.fromkeys(gpu.number for gpu in gpus))  # CUDA counts those alone that it may use
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdecimal():
            found = [gpu for gpu in gpus if gpu.number in numbers[int(entry) : int(entry) + 1]][:1]
        else:
            found = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in chosen:
            return (), f"CUDA_VISIBLE_DEVICES={wanted!r} names a device twice"
        chosen += found
    return tuple(chosen), f"CUDA_VISIBLE_DEVICES={wanted!r} shows none"
