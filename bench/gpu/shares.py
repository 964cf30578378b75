"""Where a step's time goes on a GPU: matrix products and attention, which come from libraries that all share, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ground import timed
from sides import Spread
from torch.profiler import ProfilerActivity, profile

# What the names of kernels hold, and on a CPU those of operators; what names none of them is the rest.
SHARED = {
    "attention": ("flash", "fmha", "sdpa", "attention"),
    "convolutions": ("conv", "implicit_gemm", "fprop", "dgrad", "wgrad", "winograd"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "aten::mm", "aten::addmm", "aten::bmm", "splitk"),
}
REST, IDLE = "all other kernels", "idle: no kernel at work"
PROFILED = 10  # steps, where a turn has many
EDGE = 8192  # of the matrices whose product tells what the device can do at best


def find_shares(device: torch.device, call: Callable[[], object]) -> dict[str, float]:
    """Seconds of a call by kind of kernel, and those in which the device stood still; the call is profiled once."""
    wall = timed(device, call).wall
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds, acc_events=True) as profiler:
        timed(device, call)
    found = dict.fromkeys([*SHARED, REST], 0.0)
    for event in profiler.key_averages():
        found[kind_of(event.key)] += seconds(event, device)
    return {**found, IDLE: max(0.0, wall - sum(found.values()))}


def kind_of(name: str) -> str:
    """The kind of a kernel. Triton's are called after what is fused in them, but for its templates for products."""
    name = name.lower()
    if name.startswith("triton_"):
        return "matrix products" if name.startswith("triton_tem") else REST
    return next((kind for kind, words in SHARED.items() if any(word in name for word in words)), REST)


def seconds(event: Any, device: torch.device) -> float:
    """What a kernel took, on a CPU an operator; 0 for what encloses others."""
    if device.type != "cuda":
        return float(event.self_cpu_time_total) / 1e6
    if event.device_type.name != "CUDA" or event.is_user_annotation:
        return 0.0
    return float(event.self_device_time_total) / 1e6


def table(found: dict[str, float], steps: int) -> list[list[str]]:
    """Rows: kind, ms of a step, share."""
    whole = sum(found.values())
    return [[kind, f"{1e3 * time / steps:.2f}", f"{time / whole:.1%}"] for kind, time in found.items() if time]


def bound(found: dict[str, float]) -> tuple[float, str]:
    """How many times as fast it would be if nothing but the shared kernels took time, and that as a sentence."""
    whole, shared = sum(found.values()), sum(found[kind] for kind in SHARED)
    times = whole / shared
    return times, (
        f"{shared / whole:.0%} of a step are matrix products, convolutions and attention from the libraries that both sides "
        f"call; were all else free, it would be {times:.2f} × as fast as it is"
    )


def best_product(device: torch.device, dtype: torch.dtype, edge: int = EDGE, rounds: int = 8) -> Spread:
    """Floating-point operations a second of a product of square matrices."""
    left, right = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    calls = 10

    def multiply() -> None:
        for _ in range(calls):
            torch.mm(left, right)

    multiply()
    return Spread.of([2.0 * edge**3 * calls / timed(device, multiply).wall for _ in range(rounds)])
