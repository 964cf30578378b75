"""The names of what a GPU did."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def names_of_kernels(call: Callable[[], object]) -> list[str]:
    """What the GPU did for a call, copies among it, by name in lower case and as often as it did it; in no order."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    names: list[str] = []
    for event in profiler.key_averages():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            names += [event.key.lower()] * event.count
    assert names, "the profiler saw nothing: it may need rights that this container has not"
    return names
