"""Whether NCCL can use this host's InfiniBand or RoCE adapters from here: else it takes TCP, many times slower, and says nothing.

Adapters show in /sys in any container; their device files have to be given to it, and libibverbs opens them
(https://docs.kernel.org/infiniband/user_verbs.html). The limit on locked memory has a row of its own, in limits.py.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from slipway.launch.health.finding import ok, warning
from slipway.launch.muster.card import Finding
from slipway.launch.resolve.advice import advise
from slipway.protocol.cgroups import read_kernel_file

ROW, LIBRARY = "InfiniBand", "libibverbs.so.1"


def look_at_infiniband(
    runtime: str, root: Path = Path("/"), load: Callable[[str], object] = ctypes.CDLL
) -> Iterator[Finding]:
    """The row about adapters; none where the host has none. `runtime` as in Host; `root` and `load` are for tests."""
    adapters = sorted((root / "sys/class/infiniband").glob("*"))
    if not adapters:
        return
    names = ", ".join(adapter.name for adapter in adapters)
    files = sorted((root / "dev/infiniband").glob("uverbs*"))
    if not files:
        found = f"this host has {names}, but /dev/infiniband is not here: NCCL takes TCP"
        yield warning(ROW, found, advise("InfiniBand", runtime))
    elif not all(os.access(file, os.R_OK | os.W_OK) for file in files):
        found = f"{names}: user {os.getuid()} may not open {files[0].name} in /dev/infiniband: NCCL takes TCP"
        yield warning(
            ROW, found, "let all read and write /dev/infiniband/uverbs* on the host, as rdma-core's udev rules do"
        )
    elif not any(
        "ACTIVE" in read_kernel_file(state) for adapter in adapters for state in adapter.glob("ports/*/state")
    ):
        yield warning(
            ROW, f"{names}: no port is active: NCCL takes TCP", "look at ibstat, the cable and the subnet manager"
        )
    elif not _loads(load):
        yield warning(
            ROW, f"{names}, but {LIBRARY} is missing: NCCL takes TCP", "apt-get install libibverbs1 ibverbs-providers"
        )
    else:
        yield ok(ROW, f"{names}: device files and library are here")


def _loads(load: Callable[[str], object]) -> bool:
    try:
        load(LIBRARY)
    except OSError:
        return False
    return True
