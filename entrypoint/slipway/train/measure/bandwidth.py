"""Results of collectives: bandwidth from measured times, how it is shown, and which rank is the slowest.

Definitions are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Algorithm bandwidth
is size / time. Bus bandwidth multiplies it by what each collective has to send over the slowest link per byte of its size, so
that it can be compared with the hardware whatever the number of ranks n. The size is that of the whole buffer: what each rank
has at the end of an all-gather and at the beginning of a reduce-scatter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from slipway.options.allreduce import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER
from slipway.protocol.printable import counted
from slipway.train.measure.plots import Axis, Curve, draw


@dataclass(frozen=True)
class Measurement:
    """One collective at one size. Times are seconds per call: the mean, least and largest of all ranks."""

    collective: str
    size: int  # bytes
    mean: float
    least: float
    largest: float
    algorithm: float  # bandwidth, bytes per second
    bus: float  # likewise

    def values(self) -> dict[str, Any]:
        """Return what allreduce.json holds about it."""
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

    @property
    def cells(self) -> list[str]:
        """Return a table row."""
        times = [time_text(seconds) for seconds in (self.mean, self.least, self.largest)]
        return [self.collective, size_text(self.size), *times, rate_text(self.algorithm), rate_text(self.bus)]


BUS_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        ALL_REDUCE: lambda n: 2 * (n - 1) / n,
        ALL_GATHER: lambda n: (n - 1) / n,
        REDUCE_SCATTER: lambda n: (n - 1) / n,
        BROADCAST: lambda n: 1.0,
    }
)


def measure(collective: str, size: int, seconds: Sequence[float]) -> Measurement:
    """Return the measurement for each rank's seconds per call."""
    ranks, mean = len(seconds), sum(seconds) / len(seconds)
    algorithm = size / mean
    bus = algorithm * BUS_FACTORS[collective](ranks)
    return Measurement(collective, size, mean, min(seconds), max(seconds), algorithm, bus)


def message_sizes(least: int, largest: int, factor: int) -> list[int]:
    """Return sizes in bytes from `least` to `largest`, each `factor` times the previous; only `least` if `largest` is below."""
    sizes = [least]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return sizes


def count_elements(collective: str, size: int, item: int, ranks: int) -> int:
    """Return how many elements of `item` bytes a message of about `size` bytes has; at least one for every rank.

    As in nccl-tests, what is divided among the ranks is rounded down to a multiple of their number.
    """
    parts = ranks if collective in (ALL_GATHER, REDUCE_SCATTER) else 1
    return max(1, size // item // parts) * parts


def bandwidth_summary(rows: Sequence[Measurement], processes: int) -> str:
    """Return a line with the first collective's highest bus bandwidth and its latency at the smallest size."""
    first = by_collective(rows)[rows[0].collective]
    best, smallest = max(first, key=lambda row: row.bus), min(first, key=lambda row: row.size)
    return (
        f"{best.collective}: up to {rate_text(best.bus)} bus bandwidth (at {size_text(best.size)}), "
        f"{time_text(smallest.mean)} at {size_text(smallest.size)}, {counted(processes, 'process')}"
    )


def by_collective(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Group rows by collective."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.collective, []).append(row)
    return groups


COLUMNS = ("collective", "size", "latency", "min", "max", "algorithm", "bus")


def line(cells: Sequence[str]) -> str:
    """Format a row of the table that is printed during measurement, or its header."""
    return "  ".join([f"{cells[0]:<14}", *(f"{cell:>10}" for cell in cells[1:])])


PREFIXES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size_text(size: float) -> str:
    """Format bytes: 4 KiB, 1.5 MiB, 10 B."""
    for factor, unit in PREFIXES:
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} B"


def time_text(seconds: float) -> str:
    """Format a short time: 12.3 µs, 4.56 ms, 1.20 s."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def rate_text(rate: float) -> str:
    """Format bytes per second in powers of ten, as hardware is sold: 412 GB/s, 12.3 MB/s."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}"
    return f"{rate / 1e3:.3g} kB/s"


SIZE, RATE, TIME = Axis("message", size_text, base=2), Axis("", rate_text), Axis("", time_text, base=10)


def draw_by_size(
    title: str,
    groups: Iterable[tuple[str, int, Sequence[Measurement]]],
    value: Callable[[Measurement], float],
    axis: Axis,
) -> str:
    """Draw a value over message sizes, as an SVG element: a curve for each group, given by name, colour and rows."""
    curves = [Curve(name, tuple((row.size, value(row)) for row in rows), colour) for name, colour, rows in groups]
    return draw(title, curves, SIZE, axis, legend=True)


STANDS_OUT = 2.0  # times the median: from here on a rank is certainly slow, below it some rank just has to be last


@dataclass(frozen=True)
class SlowestRank:
    """The slowest rank and what shows it: its `own` work or its `link`, in seconds, beside the median of all ranks."""

    rank: int
    what: str
    seconds: float
    median: float

    @property
    def certain(self) -> bool:
        """Whether it is much slower than the others."""
        return self.seconds >= STANDS_OUT * self.median

    @property
    def text(self) -> str:
        """Return the measurement as a sentence."""
        measured = {
            "own": f"{time_text(self.seconds)} for its own work (writing and checking numbers)",
            "link": f"{time_text(self.seconds)} for 1 MiB to and from the nearer of its neighbours",
        }[self.what]
        verdict = "" if self.certain else ", so no rank stands out"
        return f"{measured}, against {time_text(self.median)} in the middle of all{verdict}"


def find_slowest(own: Sequence[float], links: Mapping[tuple[int, int], float]) -> SlowestRank:
    """Return the slowest rank, from each rank's own seconds and the seconds of the links between neighbours in the ring."""
    slowest = max(range(len(own)), key=own.__getitem__)
    by_work = SlowestRank(slowest, "own", own[slowest], statistics.median_low(own))
    if by_work.certain or len(links) < 3:  # both ranks are ends of the only link
        return by_work
    best = {rank: min(seconds for link, seconds in links.items() if rank in link) for link in links for rank in link}
    slowest = max(best, key=best.__getitem__)
    by_link = SlowestRank(slowest, "link", best[slowest], statistics.median_low(list(best.values())))
    return by_link if by_link.certain else by_work


def rounds(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the links of a ring through `members`, in rounds in which each member is in at most one link."""
    count = len(members)
    if count < 2:
        return []
    links = [(members[i], members[(i + 1) % count]) for i in range(count if count > 2 else 1)]
    odd = [links.pop()] if count > 2 and count % 2 else []  # it shares a rank with both the first and the last but one
    return [part for part in (links[::2], links[1::2], odd) if part]
