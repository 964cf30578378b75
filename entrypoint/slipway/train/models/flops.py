"""How much of what a GPU could do at best a training makes use of: its model FLOPs utilisation."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from slipway.train.models.gpt import Gpt

# Dense bf16 or fp16 tensor-core operations per second, from NVIDIA's data sheets of these products. The first name that
# the device's name holds as words counts, so more special ones stand first.
PEAKS: Mapping[str, float] = {
    "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12,
    "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12,
    "A40": 150e12, "V100": 125e12, "T4": 65e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
# Multiprocessors of the whole GPU, from the same data sheets, where MIG can divide it: a slice has some of them, and a driver
# that calls it "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
MULTIPROCESSORS: Mapping[str, int] = {
    "B200": 148, "H200": 132, "H100 PCIe": 114, "H100": 132, "H800": 132, "A100": 108, "A800": 108,
}  # fmt: skip


def flops_per_token(model: Gpt) -> float:
    """Floating-point operations of forward and backward for each token of a sample as long as the model sees.

    6 N + 12 L H Q T (Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B): N parameters,
    L layers, H heads of width Q, T tokens. The position embedding is left out of N, since it multiplies nothing; the
    token embedding counts, since it is the output layer, too.
    """
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters()) - model.wpe.weight.numel()
    return 6.0 * parameters + 12.0 * config.layers * config.embed * config.context


def utilisation(flops_per_second: float, device: torch.device) -> float:
    """The share of the device's peak that `flops_per_second` of one process are; 0 where the peak is unknown."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    peak = _known(PEAKS, name)
    if " MIG " in name:
        whole = _known(MULTIPROCESSORS, name)
        peak *= torch.cuda.get_device_properties(device).multi_processor_count / whole if whole else 0.0
    return flops_per_second / peak if peak else 0.0


def _known(table: Mapping[str, float], name: str) -> float:
    """What a table has for a device of this name; 0 where it has nothing."""
    return next((value for known, value in table.items() if re.search(rf"\b{known}\b", name)), 0.0)
