"""How a training computes: in which precision, compiled or not, and what happens to steps that are not finite.

A step whose loss or gradient is not a finite number is skipped on the device; the host learns of it one step later, so
that it never waits.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

from slipway.options.common import FP16_NEEDS_GPU
from slipway.protocol.mistake import ConfigurationError
from slipway.train.snapshots.tensors import plain
from slipway.train.worker.launcher import NoProgressError


@dataclass(frozen=True)
class Precision:
    """A precision on a device: `name` is fp32, bf16 or fp16, `device_type` is cuda or cpu."""

    name: str
    device_type: str

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def scaler(self) -> GradScaler:
        """Return a gradient scaler; it does nothing unless the precision is fp16."""
        return GradScaler(self.device_type, enabled=self.name == "fp16")


def read_precision(wanted: str, device: torch.device) -> Precision:
    """Choose the precision for `device`. Raises ConfigurationError for one that does not work there."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    name = choose_precision(wanted, capability, has_fast_bf16(cpu_flags(), os.environ))
    return Precision(name, device.type)


def choose_precision(wanted: str, capability: tuple[int, int] | None, fast_cpu_bf16: bool) -> str:
    """fp32, bf16 or fp16 for what the user `wanted`; `capability`: the GPU's, None on a CPU. Raises ConfigurationError."""
    if wanted == "fp16" and capability is None:
        raise ConfigurationError(FP16_NEEDS_GPU)
    if wanted != "auto":
        return wanted
    if capability is None:
        return "bf16" if fast_cpu_bf16 else "fp32"
    # bf16 tensor cores came with compute capability 8.0, fp16 ones with 7.0.
    return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the instruction-set flags of the first CPU; none if the file does not exist."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


# Measured on two cores: with one of these flags a training step in bf16 takes a third of the time of fp32; without
# them bf16 is emulated and ten times slower.
FAST_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

# Variables that limit oneDNN or ATen to an older instruction set, and the values that exclude bf16 instructions.
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
ISA_LIMITS: Mapping[str, frozenset[str]] = {
    name: frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"})
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
} | {"ATEN_CPU_CAPABILITY": frozenset({"DEFAULT", "AVX2"})}


def has_fast_bf16(flags: Collection[str], environ: Mapping[str, str]) -> bool:
    """Whether a CPU with these `/proc/cpuinfo` flags is fast at bf16 under the limits that `environ` sets."""
    limited = any(environ.get(name, "").upper() in slow for name, slow in ISA_LIMITS.items())
    return bool(FAST_BF16_FLAGS & set(flags)) and not limited


# MB. torch splits a compiled model in DistributedDataParallel where buckets end, and asserts that no bucket is smaller
# than the first one of 1 MiB (DDPOptimizer in torch/_dynamo/backends/distributed.py, torch 2.10).
SMALLEST_BUCKET = 1.0


def decide_compile(
    wanted: bool | None, device_type: str, environ: Mapping[str, str], bucket_mb: float | None = None
) -> bool:
    """Return whether to compile the model. If `wanted` is None (not typed), models on GPUs are compiled.

    `bucket_mb` is the size of DistributedDataParallel's buckets, None without it. Raises ConfigurationError if they are too small
    for a compiled model, or if --compile was typed and its compiler is missing.
    """
    cuda = device_type == "cuda"
    # Worth its start-up time on a GPU; on a CPU it gains 5 % at best and costs up to 36 s.
    if not (cuda if wanted is None else wanted):
        return False
    # What torch/_inductor/config.py (cpp.cxx) and triton/runtime/build.py look for.
    candidates = (
        [environ["CC"]] if cuda and environ.get("CC") else ["gcc", "clang"] if cuda else [environ.get("CXX") or "g++"]
    )
    if any(shutil.which(name, path=environ.get("PATH")) for name in candidates):
        if bucket_mb is not None and bucket_mb < SMALLEST_BUCKET:
            raise ConfigurationError(
                f"--bucket-mb {bucket_mb:g} is too small for a model that is compiled: torch's compiler wants "
                f"{SMALLEST_BUCKET:g} MB or more. Type --bucket-mb {SMALLEST_BUCKET:g}, or --no-compile."
            )
        return True
    if wanted is None:
        return False
    raise ConfigurationError(explain_missing_compiler(cuda, candidates, environ))


def explain_missing_compiler(cuda: bool, candidates: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return which compiler is missing and how to install it."""
    needed, package = ("a C compiler", "gcc libc6-dev") if cuda else ("a C++ compiler", "g++")
    only = "" if cuda else " (GPUs need only gcc)"
    install = f"Install it (on Debian: apt-get install {package})"
    if environ.get("SLIPWAY_IMAGE"):  # set by the image, in which the user cannot install packages
        install = f"Add it in an image of your own (images/extend/Dockerfile: apt-get install {package})"
    missing = f"neither {' nor '.join(candidates)} is" if len(candidates) > 1 else f"{candidates[0]} is not"
    return (
        f"--compile on a {'GPU' if cuda else 'CPU'} needs {needed}{only}, and {missing} installed. "
        f"{install}, or leave --compile out."
    )


class NonFiniteError(NoProgressError):
    """Too many steps in a row were not finite, or weights are not."""

    advice = "type a smaller --lr, or a positive --clip"


class StepCounts:
    """Sums over steps that are kept on the device, so that no step waits for the host."""

    def __init__(self, device: torch.device) -> None:
        self.losses = torch.zeros((), device=device)  # sum over the steps since the last report that were not skipped
        self.skipped = torch.zeros((), device=device)  # steps skipped since the last report
        self.in_row = torch.zeros((), device=device)  # steps skipped in a row, up to now
        self._none = torch.zeros((), device=device)
        self._seen = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def judge(self, loss: torch.Tensor, norm: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """Count a step by its loss and the norm of its gradient. Returns 1.0 if it must be skipped, else 0.0.

        `scale` is the gradient scaler's scale, None without a scaler. While it is above 1, an overflow is how the scaler
        finds the right scale and not a sign of trouble. With an averaged gradient the result is the same on all ranks.
        """
        odd = norm * 0 != 0  # infinity times 0 is NaN
        bad = odd.float()
        self.losses += torch.where(odd, self._none, loss.detach())
        self.skipped += bad
        self.in_row = (self.in_row + (1 if scale is None else scale <= 1)) * bad
        return bad

    def late(self) -> int:
        """Return how many steps in a row were skipped, as of the previous call."""
        if self._copied is not None:
            self._copied.synchronize()
        seen = int(self._seen)
        self._seen.copy_(self.in_row, non_blocking=True)
        if self._copied is not None:
            self._copied.record()  # type: ignore[no-untyped-call]
        return seen

    def restart(self) -> None:
        """Start a new report."""
        self.losses.zero_()
        self.skipped.zero_()

    def state(self) -> torch.Tensor:
        """Return everything, float32, shape (3,), on the device."""
        return torch.stack([self.losses, self.skipped, self.in_row])

    def load(self, states: list[torch.Tensor], own: torch.Tensor | None) -> None:
        """Restore `state`: this rank's `own`, or without it (another world size) the mean over the `states` of all ranks."""
        values = torch.stack(states).mean(0) if own is None else own
        for number, value in zip((self.losses, self.skipped, self.in_row), values, strict=True):
            number.copy_(value)
        self._seen.copy_(values[2])


def poison(loss: torch.Tensor) -> torch.Tensor:
    """Return the same loss; if it is not finite, its gradient becomes NaN, and after averaging that of every rank."""
    return loss * (loss.detach() * 0 + 1)  # infinity times 0 is NaN


class Buffers:
    """A model's buffers, such as running statistics, as they are before a step that may have to be skipped.

    A few operations on all of them at once, where a ResNet-50 would need six hundred single ones.
    """

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        self._alike = [(kind, strung(kind)) for kind in alike(map(plain, buffers))]

    def restore(self, left_out: torch.Tensor) -> None:
        """Restore the buffers if the step was skipped: they have seen values that are not finite."""
        for buffers, before in self._alike:
            kept = torch.where(left_out > 0, before, strung(buffers))
            values = torch.split(kept, [buffer.numel() for buffer in buffers])
            shaped = [value.view(buffer.shape) for value, buffer in zip(values, buffers, strict=True)]
            torch._foreach_copy_(buffers, shaped)


def strung(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate copies of tensors of the same type and device."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def alike(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group tensors by type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


def are_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether every number in the tensors is finite. Takes one pass at memory speed and waits for the device."""
    kinds = alike(tensor.float() if tensor.itemsize == 1 else tensor for tensor in tensors if tensor.numel())
    return all(bool(torch.stack(summaries(kind)).isfinite().all()) for kind in kinds)


def summaries(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a number for each tensor (all of the same type and device) that is finite only if the tensor is."""
    if tensors[0].is_cuda:  # one call for all; on a CPU the maximum takes ten times as long as the sum
        return list(torch._foreach_norm(tensors, math.inf))
    return [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
