"""What this Python must have for a job: PyTorch, and for a workload of ours what the extra `train` brings; and which software and
machine this is, for a bug report.

A wheel without extras is the launcher alone, for an environment with a PyTorch of its own. Nothing is imported to find out:
that would take longer than everything else before a start.
"""

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipway import __version__
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.placement import ON_CPU
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY, LaunchError
from slipway.protocol.variants import advise_variant, fitting, why_unusable

LEAST_TORCH = (2, 9)  # older ones lack parts of torchrun that process/agent.py uses
TRAIN = ("numpy", "safetensors", "tensorboard", "tokenizers", "tqdm")  # what each of our own workloads imports; modules


def require_packages(
    workload: str,
    builtin: bool,
    locate: Callable[[str], Path | None] | None = None,
    wanted: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise LaunchError, with what to type, where a job cannot start for want of a package. `builtin`: a workload of ours.

    `locate` finds the folder of a module; it is for tests. `wanted`: modules that one of the options needs, with the option.
    """
    locate = locate or locate_module
    folder = locate("torch")
    if folder is None:
        raise LaunchError(
            f"{sys.executable} has no PyTorch, which every job needs. Install Slipway where PyTorch is, or type: "
            f"{pip_install(f'torch>={least()}')}"
        )
    if (found := read_version(folder)) and found[1] < LEAST_TORCH:
        raise LaunchError(
            f"PyTorch {found[0]} (in {folder}) is too old: Slipway needs {least()} or newer. Type: "
            f"{pip_install(f'torch>={least()}', '--upgrade')}"
        )
    if builtin and (lacking := [name for name in TRAIN if locate(name) is None]):
        raise missing(f"slipway {workload}", lacking)
    for module, option in wanted.items():
        if locate(module) is None:
            raise LaunchError(
                f"{option} needs {module}, which {sys.executable} does not have. Use an image that has it (cuda12), install the "
                f"{module} that belongs to this PyTorch, or leave {option} out."
            )


def require_usable_gpus(devices: Devices, cuda: str | None, machine: str) -> None:
    """Raise LaunchError where the PyTorch of a job cannot use the GPUs that it would get, with the image that can: 78 for a build
    without CUDA, 77 for an old driver or old GPUs. `cuda` as read_cuda returns it, `machine`: the processor."""
    gpus = [(gpu.name, gpu.capability) for gpu in devices.gpus]
    if reason := why_unusable(cuda, devices.driver, gpus, machine):
        raise LaunchError(
            f"{reason[0].upper()}{reason[1:]}: {advise_variant(devices.driver, gpus, machine)}; to choose other GPUs, set "
            f"CUDA_VISIBLE_DEVICES; to train on the CPU, {ON_CPU}.",
            CONFIGURATION if cuda == "" else UNHEALTHY,
        )


def missing(command: str, modules: Sequence[str]) -> LaunchError:
    """The error for a command that needs modules of the extra `train`."""
    return LaunchError(
        f"{command} needs {', '.join(modules)}, which {sys.executable} does not have: this Slipway was installed without "
        f"its extra `train`. Type: {pip_install('slipway[train]')}"
    )


def locate_module(name: str) -> Path | None:
    """The folder of an installed module, found without importing it."""
    found = find_spec(name)
    return None if found is None or found.origin is None else Path(found.origin).parent


def read_version(torch: Path) -> tuple[str, tuple[int, int]] | None:
    """PyTorch's version as it is written and as numbers; None where its folder does not say."""
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]((\d+)\.(\d+)[^'\"]*)", text, re.MULTILINE)
    return (found[1], (int(found[2]), int(found[3]))) if found else None


def least() -> str:
    """The oldest PyTorch that will do, as people write it."""
    return ".".join(map(str, LEAST_TORCH))


def pip_install(what: str, *options: str) -> str:
    """The command that installs something for this very Python."""
    return " ".join([sys.executable, "-m pip install", *options, f"'{what}'"])


def read_cuda(torch: Path | None) -> str | None:
    """The CUDA version for which a PyTorch was built, empty for a build without CUDA; None where its folder does not say."""
    try:
        text = (torch / "version.py").read_text(encoding="utf-8") if torch else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b.* = (?:None|['\"]([\d.]+)['\"])", text, re.MULTILINE)
    return (found[1] or "") if found else None


def installed_nccl(cuda: str | None) -> str | None:
    """The version of the NCCL that came with PyTorch for this CUDA version."""
    return installed(f"nvidia-nccl-cu{cuda.partition('.')[0]}") if cuda else None


def read_versions(host: Host, devices: Devices) -> dict[str, Any]:
    """Versions by name, None for what is not here; of this process's machine and image. `fits`: the images for its GPUs."""
    cuda = read_cuda(locate_module("torch"))
    gpus = [(gpu.name, gpu.capability) for gpu in devices.gpus]
    fits = fitting(devices.driver, gpus, platform.machine()) if gpus else ()
    return {
        "slipway": __version__,
        "image": host.image,
        "runtime": host.runtime,
        "python": platform.python_version(),
        "torch": installed("torch"),
        "cuda": cuda or None,
        "nccl": installed_nccl(cuda),
        "driver": devices.driver or None,
        "gpus": [gpu.name for gpu in devices.gpus],
        "fits": [str(variant) for variant in fits],
        "no_gpu_because": None if devices.gpus else devices.reason,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": devices.cpus,
        "uid": os.getuid(),
    }


def installed(package: str) -> str | None:
    """The version of an installed package, found without importing it."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long as the rest of a plan

    try:
        return version(package)
    except PackageNotFoundError:
        return None
