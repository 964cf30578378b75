"""How fast collectives are, from their times: pure arithmetic, with the definitions of nccl-tests.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: algorithm bandwidth is size / time; bus bandwidth
multiplies it by what each collective has to send over the slowest link per byte of its size, so that it can be compared
with the hardware whatever the number of ranks n. The size is that of the whole buffer: what each rank has at the end of
an all-gather and at the beginning of a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from slipway.options.allreduce import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER

BUS_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        ALL_REDUCE: lambda n: 2 * (n - 1) / n,
        ALL_GATHER: lambda n: (n - 1) / n,
        REDUCE_SCATTER: lambda n: (n - 1) / n,
        BROADCAST: lambda n: 1.0,
    }
)

PREFIXES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Measurement:
    """One collective at one size. Times are seconds per call: the mean, least and largest of all ranks."""

    collective: str
    size: int  # bytes
    ranks: int
    mean: float
    least: float
    largest: float

    @property
    def algorithm(self) -> float:
        """Algorithm bandwidth, bytes per second."""
        return self.size / self.mean

    @property
    def bus(self) -> float:
        """Bus bandwidth, bytes per second."""
        return self.algorithm * BUS_FACTORS[self.collective](self.ranks)

    def values(self) -> dict[str, Any]:
        """As it stands in allreduce.json."""
        return {
            "collective": self.collective,
            "bytes": self.size,
            "latency_us": {
                name: round(seconds * 1e6, 3)
                for name, seconds in (("mean", self.mean), ("min", self.least), ("max", self.largest))
            },
            "algorithm_gb_per_second": round(self.algorithm / 1e9, 6),
            "bus_gb_per_second": round(self.bus / 1e9, 6),
        }


def measure(collective: str, size: int, seconds: Sequence[float]) -> Measurement:
    """The measurement that each rank's seconds per call make."""
    return Measurement(collective, size, len(seconds), sum(seconds) / len(seconds), min(seconds), max(seconds))


def message_sizes(least: int, largest: int, factor: int) -> list[int]:
    """Bytes from `least` up to `largest`, each `factor` times the one before; `least` alone where `largest` is below."""
    sizes = [least]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return sizes


def count_elements(collective: str, size: int, item: int, ranks: int) -> int:
    """How many elements of `item` bytes a message of about `size` bytes has; at least one for every rank.

    As in nccl-tests, what is divided among the ranks is rounded down to a multiple of them.
    """
    parts = ranks if collective in (ALL_GATHER, REDUCE_SCATTER) else 1
    return max(1, size // item // parts) * parts


HEADER = f"{'collective':<14}  {'size':>10}  {'latency':>10}  {'min':>10}  {'max':>10}  {'algorithm':>10}  {'bus':>10}"


def line(measurement: Measurement) -> str:
    """A row of the table under HEADER."""
    times = (measurement.mean, measurement.least, measurement.largest)
    return (
        f"{measurement.collective:<14}  {size_text(measurement.size):>10}  "
        f"{'  '.join(f'{time_text(seconds):>10}' for seconds in times)}  "
        f"{rate_text(measurement.algorithm):>10}  {rate_text(measurement.bus):>10}"
    )


def bandwidth_summary(measurements: Sequence[Measurement]) -> str:
    """The result in a line: the highest bus bandwidth of the first collective, and its latency at the smallest size."""
    first = [row for row in measurements if row.collective == measurements[0].collective]
    best, smallest = max(first, key=lambda row: row.bus), min(first, key=lambda row: row.size)
    return (
        f"{best.collective}: up to {rate_text(best.bus)} bus bandwidth (at {size_text(best.size)}), "
        f"{time_text(smallest.mean)} at {size_text(smallest.size)}, {best.ranks} processes"
    )


def size_text(size: float) -> str:
    """Bytes as people read them: 4 KiB, 1.5 MiB, 10 B."""
    for factor, unit in PREFIXES:
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} B"


def time_text(seconds: float) -> str:
    """A short time: 12.3 µs, 4.56 ms, 1.20 s."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def rate_text(rate: float) -> str:
    """Bytes per second in units of powers of ten, as hardware is sold: 412 GB/s, 12.3 MB/s."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}"
    return f"{rate / 1e3:.3g} kB/s"
