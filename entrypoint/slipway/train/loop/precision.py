"""Which arithmetic this hardware is fast at, and the autocast context and gradient scaler that go with it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

from slipway.options.common import FP16_NEEDS_GPU
from slipway.protocol.mistake import ConfigurationError

# Measured on two cores: with one of these flags a training step in bf16 takes a third of the time of fp32; without
# them bf16 is emulated and ten times slower.
FAST_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

# What users set to hold oneDNN or ATen to an older instruction set, and the values that leave bf16 without hardware.
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
ISA_LIMITS: Mapping[str, frozenset[str]] = {
    name: frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"})
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
} | {"ATEN_CPU_CAPABILITY": frozenset({"DEFAULT", "AVX2"})}


@dataclass(frozen=True)
class Precision:
    """An arithmetic on a device: `name` is fp32, bf16 or fp16, `device_type` cuda or cpu."""

    name: str
    device_type: str

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which forward passes run."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def scaler(self) -> GradScaler:
        """A gradient scaler; it passes everything through unless the arithmetic is fp16."""
        return GradScaler(self.device_type, enabled=self.name == "fp16")


def has_fast_bf16(flags: Collection[str], environ: Mapping[str, str]) -> bool:
    """Whether a CPU with these `/proc/cpuinfo` flags is fast at bf16 under the limits that `environ` sets."""
    limited = any(environ.get(name, "").upper() in slow for name, slow in ISA_LIMITS.items())
    return bool(FAST_BF16_FLAGS & set(flags)) and not limited


def choose_precision(wanted: str, capability: tuple[int, int] | None, fast_cpu_bf16: bool) -> str:
    """fp32, bf16 or fp16 for what the user `wanted`.

    `capability` is the GPU's compute capability, None on a CPU. Raises ConfigurationError for what cannot work.
    """
    if wanted == "fp16" and capability is None:
        raise ConfigurationError(FP16_NEEDS_GPU)
    if wanted != "auto":
        return wanted
    if capability is None:
        return "bf16" if fast_cpu_bf16 else "fp32"
    # bf16 tensor cores came with compute capability 8.0, fp16 ones with 7.0.
    return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction-set flags of the first CPU, none where the file does not exist."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def read_precision(wanted: str, device: torch.device) -> Precision:
    """The precision to use on `device`. Raises ConfigurationError for what cannot work there."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    name = choose_precision(wanted, capability, has_fast_bf16(cpu_flags(), os.environ))
    return Precision(name, device.type)
