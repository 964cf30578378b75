"""What a user may type after the name of a workload: one frozen dataclass per workload, and its command line.

The launcher calls `parse` before it starts anything, each worker calls it again. Nothing heavier than click is imported
here; PyYAML only where --config names a file. A workload's class is loaded when it is asked for: each takes milliseconds to
make, which a start pays for the one workload that it starts.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from slipway.options.command import parse
from slipway.options.common import Common, Options

__all__ = ["WORKLOADS", "Common", "Options", "parse"]

NAMES = {
    name: f"{name.capitalize()}Options" for name in ("finetune", "gpt", "pipeline", "vision", "linear", "allreduce")
}


class Workloads(Mapping[str, type[Options]]):
    """The class of each workload, by the workload's name."""

    def __getitem__(self, workload: str) -> type[Options]:
        """Load it from the module of the workload's name. Raises KeyError."""
        name = NAMES[workload]
        kind: type[Options] = getattr(import_module(f"{__name__}.{workload}"), name)
        return kind

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(NAMES)

    def __len__(self) -> int:
        """How many there are."""
        return len(NAMES)


WORKLOADS = Workloads()
