"""This node's GPUs (through NVML, as CUDA will see them) and how much CPU it may use. No torch.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it: indices, GPU or MIG UUIDs (or a unique beginning of one), and the first
entry that names nothing ends the list, and a device named twice leaves none (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars).
"""

import ctypes
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Gpu:
    """One device as CUDA counts them: a GPU, or a MIG slice of one. `capability` is the compute capability."""

    index: int
    uuid: str
    name: str
    capability: tuple[int, int]


class Devices(NamedTuple):
    """What this node has. `reason` says why there is no GPU, `problem` why a driver that is there does not work."""

    gpus: tuple[Gpu, ...] = ()
    cpus: float = 1.0
    driver: str = ""
    reason: str = "no NVIDIA driver"
    problem: str = ""


def read_devices(environ: Mapping[str, str], nvml: Any = None, root: Path = Path("/")) -> Devices:
    """Look at this node. `nvml` and `root` (of the file system, for cgroups) are for tests."""
    cpus = count_cpus(root)
    withheld = environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none")
    # The container device interface sets void, too, but brings the devices itself.
    if withheld and not any((root / "dev").glob("nvidia[0-9]*")):
        return Devices(cpus=cpus, reason=f"NVIDIA_VISIBLE_DEVICES={environ['NVIDIA_VISIBLE_DEVICES']}")
    nvml = nvml or _load_nvml()
    if nvml is None:
        return Devices(cpus=cpus)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = error.value in (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        return Devices(cpus=cpus, reason=f"NVML answers: {error}", problem="" if absent else f"NVML answers: {error}")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        visible, reason = select_visible(_list_gpus(nvml), environ.get("CUDA_VISIBLE_DEVICES"))
        return Devices(visible, cpus, driver, reason)
    except nvml.NVMLError as error:
        return Devices(cpus=cpus, reason=f"NVML answers: {error}", problem=f"NVML answers: {error}")
    finally:
        nvml.nvmlShutdown()


def _load_nvml() -> Any:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None  # and the 20 ms that importing pynvml takes are saved
    return importlib.import_module("pynvml")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _list_gpus(nvml: Any) -> list[Gpu]:
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name, capability = _text(nvml.nvmlDeviceGetName(handle)), nvml.nvmlDeviceGetCudaComputeCapability(handle)
        slices = _list_slices(nvml, handle)
        uuids = slices if slices is not None else [_text(nvml.nvmlDeviceGetUUID(handle))]
        gpus += [Gpu(index, uuid, name, (int(capability[0]), int(capability[1]))) for uuid in uuids]
    return gpus


def _list_slices(nvml: Any, handle: Any) -> list[str] | None:
    """The UUIDs of a GPU's MIG slices; None where it is not split."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return None  # this GPU knows no MIG
    uuids = []
    for number in range(count):
        try:
            uuids.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))))
        except nvml.NVMLError:
            continue  # a place without a slice
    return uuids


def select_visible(gpus: list[Gpu], wanted: str | None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that CUDA will show for this CUDA_VISIBLE_DEVICES, and why there is none."""
    if wanted is None:
        return tuple(gpus), "the driver shows none"
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdigit():
            found = [gpu for gpu in gpus if gpu.index == int(entry)][:1]
        else:
            found = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in chosen:
            return (), f"CUDA_VISIBLE_DEVICES={wanted!r} names a device twice"
        chosen += found
    return tuple(chosen), f"CUDA_VISIBLE_DEVICES={wanted!r} shows none"


def count_cpus(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use: its affinity, or a smaller cgroup v1 or v2 quota (1.5 is possible)."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for folder in cgroup_folders(root, "cpu"):
        limits += [limit for limit in (_quota_v2(folder), _quota_v1(folder)) if limit]
    return min(limits)


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroup folders, from its own up to the top, for v2 and for a v1 controller.

    Inside a container /proc/self/cgroup may name a path of the host that is not there; the mounted top is then ours.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        own = top / path.lstrip("/")
        # Not Path.is_dir, which raises ESTALE, as a container's squashfuse answers once its job is over.
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top) and os.path.isdir(folder)]  # noqa: PTH112
    return folders


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = read_kernel_file(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_kernel_file(folder / "cpu.cfs_quota_us"), read_kernel_file(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def read_kernel_file(file: Path) -> str:
    """Return what a file of the kernel's says; empty where it is not there, or not ours to read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
