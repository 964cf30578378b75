"""Which image of the family runs on which NVIDIA driver, GPU and processor: the one table, and what it says of a machine.

Sources: the oldest driver of each CUDA version, https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
(12.x: 525, 13.x: 580; newer drivers run older CUDA); the GPUs that CUDA 13 dropped, Maxwell, Pascal and Volta,
https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/; Blackwell is known since CUDA 12.8 and its driver, 570,
https://docs.nvidia.com/cuda/archive/12.8.0/cuda-toolkit-release-notes/. The wheels on the package index hold code for CUDA on
arm64 since torch 2.11, which is CUDA 13, and not for the same GPUs (torch.cuda.get_arch_list()). Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

X86, ARM = "x86_64", "aarch64"  # as platform.machine() writes them
BLACKWELL, BLACKWELL_DRIVER = 10, "570"  # the first major compute capability of Blackwell, and the driver that knows it
Gpus = Sequence[tuple[str, tuple[int, int]]]  # names and compute capabilities


class Variant(NamedTuple):
    """An image for GPUs. `driver` is the oldest one, `floor` the lowest compute capability that its major CUDA version supports,
    `code` the lowest for which its PyTorch holds code, by the processors for which there is one. `built`: the version of CUDA for
    which that PyTorch was built; PyTorch's wheels for older ones hold code down to `floor`.
    """

    name: str
    cuda: int
    built: tuple[int, int]
    driver: str
    floor: tuple[int, int]
    code: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        """Its name."""
        return self.name


VARIANTS = (
    Variant("cuda12", 12, (12, 8), "525.60.13", (5, 0), {X86: (7, 0)}),
    Variant("cuda13", 13, (13, 0), "580", (7, 5), {X86: (7, 5), ARM: (8, 0)}),
)

WITHOUT_CUDA = "cpu"  # the variant for machines without a GPU
NAMES = (*(variant.name for variant in VARIANTS), WITHOUT_CUDA)  # the default first; each is a word of its images' tags


def lacking_driver(variant: Variant, driver: str, gpus: Gpus) -> str:
    """The oldest driver that these GPUs need with this CUDA; empty where this one is new enough."""
    blackwell = any(capability[0] >= BLACKWELL for _, capability in gpus)
    needed = max(variant.driver, BLACKWELL_DRIVER if blackwell else "", key=read_numbers)
    return needed if read_numbers(driver) < read_numbers(needed) else ""


def too_old_gpus(lowest: tuple[int, int], gpus: Gpus) -> str:
    """The GPUs below a compute capability, each once; empty where there is none."""
    old = dict.fromkeys(
        f"{name} (compute capability {major}.{minor})" for name, (major, minor) in gpus if (major, minor) < lowest
    )
    return ", ".join(old)


def fitting(driver: str, gpus: Gpus, machine: str) -> tuple[Variant, ...]:
    """The images that run on this driver, on all of these GPUs and on this processor."""
    return tuple(variant for variant in _with_code(gpus, machine) if not lacking_driver(variant, driver, gpus))


def advise_variant(driver: str, gpus: Gpus, machine: str) -> str:
    """Which image to use on this machine, or what keeps all of them from running, as the end of a sentence."""
    if fits := fitting(driver, gpus, machine):
        return f"use the image {' or '.join(map(str, fits))}"
    if could := _with_code(gpus, machine):
        drivers = [f"{lacking_driver(variant, driver, gpus)} or newer for the image {variant}" for variant in could]
        return f"update the driver on the host and reboot: {', '.join(drivers)}"
    return f"no image has code for all of these GPUs ({machine}): {', '.join(dict.fromkeys(name for name, _ in gpus))}"


def why_unusable(cuda: str | None, driver: str, gpus: Gpus, machine: str) -> str:
    """Why a PyTorch built for this CUDA version cannot use these GPUs; empty where it can, or where nothing is known of it.

    `cuda` is empty for a build without CUDA, and None where it is unknown: then only a driver too old for every image is wrong.
    """
    if cuda == "":
        return "this PyTorch was built without CUDA and cannot use the GPUs" if gpus else ""
    major = read_numbers(cuda)[0] if cuda else min(variant.cuda for variant in VARIANTS)
    known = next((variant for variant in VARIANTS if variant.cuda == major), None)
    if known is None:  # no image has it
        return ""
    if needed := lacking_driver(known, driver, gpus):
        return f"the driver {driver} is too old for CUDA {major}, which needs {needed} or newer"
    if not cuda:
        return ""
    lowest = known.code.get(machine, known.floor) if read_numbers(cuda) >= known.built else known.floor
    old = too_old_gpus(lowest, gpus)
    return f"this PyTorch (CUDA {cuda}) has no code for {old}, only for {lowest[0]}.{lowest[1]} or newer" if old else ""


# torch/csrc/cuda/Module.cpp and torch/cuda/__init__.py: CUDA's number of the driver, 12040 for 12.4.
FOUND = r"found version (\d+)\d{3}\b"


def advise_old_driver(said: str, machine: str) -> str:
    """What helps where torch or NCCL reported that the driver is too old. torch says which CUDA version the driver supports."""
    found, built = re.search(FOUND, said), [variant for variant in VARIANTS if machine in variant.code]
    able = [variant for variant in built if found and variant.cuda <= int(found[1])]
    if able:
        return (
            f"use the image {' or '.join(map(str, able))}, which this driver supports, or update the driver on the host"
        )
    needs = ", ".join(f"{variant} needs {variant.driver} or newer" for variant in built or VARIANTS)
    return f"update the driver on the host, or use the image that fits it: {needs} (`nvidia-smi` shows the version)"


def read_numbers(version: str) -> tuple[int, ...]:
    """A driver's version as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _with_code(gpus: Gpus, machine: str) -> list[Variant]:
    built = [variant for variant in VARIANTS if machine in variant.code]
    return [variant for variant in built if not too_old_gpus(variant.code[machine], gpus)]
