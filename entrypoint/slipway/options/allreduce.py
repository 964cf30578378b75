"""Options of `allreduce`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar

import click

from slipway.options.common import COUNT, COUNT_OR_ZERO, Options, option
from slipway.options.kind import Kind
from slipway.options.numbers import Whole

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST = "all-reduce", "all-gather", "reduce-scatter", "broadcast"
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST)
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Size(Kind[int]):
    """A number of bytes: 8, 64K, 16M, 1G, in units of 1024 as nccl-tests has them."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes that `value` means."""
        found = re.fullmatch(r"(\d{1,12})\s*([KMG]?)i?B?", str(value).strip(), re.IGNORECASE)
        if not found or not int(found[1]):
            self.fail(f"{value!r} is not a number of bytes; type for example 8, 64K, 16M or 1G.", param, ctx)
        return int(found[1]) * UNITS[found[2].upper()]


class Collectives(Kind[str]):
    """Names of collectives with commas between them, each once, in the order in which they were typed."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same names as we write them."""
        names = list(dict.fromkeys(re.split(r"[,\s]+", str(value).strip(", ").lower().replace("_", "-"))))
        if unknown := [name for name in names if name not in COLLECTIVES]:
            self.fail(f"{unknown[0]!r} is not a collective; type some of {','.join(COLLECTIVES)}.", param, ctx)
        return ",".join(names)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class AllreduceOptions(Options):
    """Measure collectives over message sizes: latency, bandwidth, correctness, and the slowest rank."""

    workload: ClassVar[str] = "allreduce"
    example: ClassVar[str] = "--nproc-per-node 2 --max-bytes 1M"

    collectives: str = option(",".join(COLLECTIVES), Collectives(), "What to measure, with commas between the names.")
    min_bytes: int = option(1024, Size(), "The smallest message: 8, 64K, 16M.")
    max_bytes: int | None = option(None, Size(), "The largest message; by default 1G on GPUs, 16M on CPUs.")
    factor: int = option(4, Whole(min=2), "Factor from each size to the next.")
    iterations: int = option(20, COUNT, "Number of timed calls.")
    warmup_iterations: int = option(5, COUNT_OR_ZERO, "Number of untimed calls before them.")
    dtype: str = option("fp32", click.Choice(["fp32", "bf16", "fp16", "fp64"]), "Type of the numbers.")

    @property
    def names(self) -> list[str]:
        """The collectives, one by one."""
        return self.collectives.split(",")

    def largest(self, device: str) -> int:
        """Bytes of the largest message on a kind of device; the default follows --min-bytes where that is larger."""
        return self.max_bytes or max(self.min_bytes, 2**30 if device == "cuda" else 2**24)

    def check(self) -> None:
        """Raise click.UsageError where values contradict each other."""
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise click.UsageError(f"--max-bytes {self.max_bytes} is less than --min-bytes {self.min_bytes}.")
