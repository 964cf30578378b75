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
    """An image for GPUs. `driver` is the oldest one, `floor` the lowest compute capability that its CUDA supports, `code` the
    lowest for which its PyTorch holds code, by the processors for which there is one.
    """

    name: str
    cuda: int
    driver: str
    floor: tuple[int, int]
    code: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        """Its name."""
        return self.name


VARIANTS = (
    Variant("cuda12", 12, "525.60.13", (5, 0), {X86: (7, 0)}),
    Variant("cuda13", 13, "580", (7, 5), {X86: (7, 5), ARM: (8, 0)}),
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


# torch/csrc/cuda/Module.cpp and torch/cuda/__init__.py: CUDA's number of the driver, 12040 for 12.4.
FOUND = re.compile(r"found version (\d+)\d{3}\b")


def advise_old_driver(said: str) -> str:
    """What helps where torch or NCCL reported that the driver is too old. torch says which CUDA version the driver supports."""
    found = FOUND.search(said)
    able = [variant for variant in VARIANTS if found and variant.cuda <= int(found[1])]
    if able:
        return (
            f"use the image {' or '.join(map(str, able))}, which this driver supports, or update the driver on the host"
        )
    needs = ", ".join(f"{variant} needs {variant.driver} or newer" for variant in VARIANTS)
    return f"update the driver on the host, or use the image that fits it: {needs} (`nvidia-smi` shows the version)"


def read_numbers(version: str) -> tuple[int, ...]:
    """A driver's version as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _with_code(gpus: Gpus, machine: str) -> list[Variant]:
    built = [variant for variant in VARIANTS if machine in variant.code]
    return [variant for variant in built if not too_old_gpus(variant.code[machine], gpus)]
