"""Whether what the ranks compute from the same inputs can be compared bit by bit, and what makes it so."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slipway.protocol.cgroups import read_kernel_file
from slipway.train.observe.micro_batches import ReplayError
from slipway.train.worker.context import Context


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """A context in which a GPU repeats its results bit by bit. Raises ReplayError for an operation that cannot."""
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    kept = cudnn.benchmark, cudnn.deterministic
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = kept
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    for each in told:
        if "does not have a deterministic implementation" in str(each.message):
            raise ReplayError(f"{str(each.message).split(',')[0]}, so its results cannot be compared bit by bit")


def require_replayable(model: nn.Module, split: bool) -> None:
    """Raise ReplayError where the forward pass exchanges data between the ranks, which would spread a wrong result."""
    from torch.distributed.tensor import DTensor

    if split:
        raise ReplayError("the stages of a pipeline exchange data with each other")
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise ReplayError("SyncBatchNorm exchanges data between the ranks in the forward pass")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ReplayError("the parameters are spread over the ranks")


def kinds_of_ranks(context: Context) -> list[int]:
    """A number for each rank, equal for those whose results are comparable bit by bit; by all ranks. A line says if several."""
    own = describe_processor(context.device, os.environ)
    kinds = [int(mark) for mark in context.gather_number(zlib.crc32(own.encode()))]
    ranks_of = {kind: [rank for rank, each in enumerate(kinds) if each == kind] for kind in kinds}
    if len(ranks_of) == 1:
        return kinds
    shown = [f"{listing(ranks)} {context.share_text(own, ranks[0])}" for ranks in ranks_of.values()]
    single = [ranks[0] for ranks in ranks_of.values() if len(ranks) == 1]
    alone = f". No other rank is of the same kind as rank {', '.join(map(str, single))}. {ALONE}" if single else ""
    context.say(
        f"note: replays: {'; '.join(shown)}. Results of different kinds differ in the last bits, so each rank is compared with "
        f"those of its own kind{alone}"
    )
    return kinds


ALONE = (
    "Such a rank cannot be compared bit by bit with others. It computes each micro-batch twice, which finds faults that come and "
    "go, and a problem with a known result. To compare it, add a rank of the same kind"
)


def listing(ranks: Sequence[int]) -> str:
    """Return who has something, as the beginning of a sentence: `rank 0 has`, `rank 0 and 3 more have`."""
    return f"rank {ranks[0]} and {len(ranks) - 1} more have" if len(ranks) > 1 else f"rank {ranks[0]} has"


LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def describe_processor(device: torch.device, environ: Mapping[str, str]) -> str:
    """Return what the bits of a result depend on besides the inputs: processor, instruction set, threads, version of torch."""
    torch_version = f"torch {torch.__version__}"
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return f"{torch.cuda.get_device_name(device)}, {torch_version}, cuDNN {cudnn}"
    limits = "".join(f", {name}={environ[name]}" for name in LIMITS if name in environ)
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    name = describe_cpu(read_kernel_file(Path("/proc/cpuinfo")))
    return f"{name} ({capability}), {threads} thread{'s' * (threads > 1)}, {torch_version}{limits}"


CPU_NUMBERS = ("cpu family", "model", "CPU implementer", "CPU part", "CPU variant")
VECTORS = (
    "sse",
    "ssse",
    "avx",
    "amx",
    "fma",
    "f16c",
)  # instruction sets of x86 by which libraries choose how they compute


def describe_cpu(cpuinfo: str) -> str:
    """Return the model of the first processor in /proc/cpuinfo, and a checksum of its instruction sets.

    On virtual machines, processors of several generations may have the same name.
    """
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    numbers = "".join(f", {name} {fields[name]}" for name in CPU_NUMBERS if name in fields)
    sets = [each for each in fields.get("flags", "").split() if each.startswith(VECTORS)] + fields.get(
        "Features", ""
    ).split()
    return f"{fields.get('model name', 'a CPU')}{numbers}, instruction sets {zlib.crc32(' '.join(sorted(sets)).encode()):08x}"


class NoCollectives(TorchDispatchMode):
    """A context in which whatever exchanges data between the ranks raises ReplayError instead, on the rank that calls it."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode. Whatever torch.distributed does is an operation of c10d."""
        if "c10d" in getattr(operation, "namespace", ""):
            raise ReplayError(f"the forward pass exchanges data between the ranks ({operation})")
        return operation(*args, **(kwargs or {}))
