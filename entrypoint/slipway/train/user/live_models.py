"""The DistributedDataParallel objects of this process, wherever they are."""

from __future__ import annotations

import gc

from torch.nn.parallel import DistributedDataParallel


def release_models() -> None:
    """Take the reducers from all DistributedDataParallel objects, and so their process group.

    One that is alive while the interpreter ends aborts one process in five (`terminate called without an active exception`).
    """
    for each in live_models():
        for name in ("reducer", "logger", "process_group"):
            each.__dict__.pop(name, None)
    gc.collect()


def has_static_graph() -> bool:
    """Whether a live DistributedDataParallel object has static_graph=True."""
    return any(each.static_graph for each in live_models())


def live_models() -> list[DistributedDataParallel]:
    """Return all DistributedDataParallel objects of the process, wherever they are."""
    return [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
