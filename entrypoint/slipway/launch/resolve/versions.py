"""Which software and machine this is, for a bug report."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slipway import __version__
from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host


def read_versions(host: Host, devices: Devices) -> dict[str, Any]:
    """Versions by name, None for what is not here; of this process's machine and image."""
    return {
        "slipway": __version__,
        "image": host.image,
        "runtime": host.runtime,
        "python": platform.python_version(),
        "torch": installed("torch"),
        "cuda": installed("nvidia-cuda-runtime-cu12"),
        "nccl": installed("nvidia-nccl-cu12"),
        "driver": devices.driver or None,
        "gpus": [gpu.name for gpu in devices.gpus],
        "no_gpu_because": None if devices.gpus else devices.reason,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": devices.cpus,
        "uid": os.getuid(),
    }


def installed(package: str) -> str | None:
    """The version of an installed package, found without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
