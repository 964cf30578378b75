"""Sizes, bandwidths and the slowest rank, as arithmetic."""

from __future__ import annotations

import click
import pytest

from slipway.options import parse
from slipway.options.allreduce import AllreduceOptions
from slipway.train.measure.bandwidth import (
    bandwidth_summary,
    count_elements,
    find_slowest,
    measure,
    message_sizes,
    rate_text,
    rounds,
    size_text,
    time_text,
)

GB = 1e9


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all-reduce", 2, 1.0),
        ("all-reduce", 8, 1.75),
        ("all-gather", 8, 0.875),
        ("reduce-scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(collective: str, ranks: int, factor: float) -> None:
    row = measure(collective, 2**30, [0.5] * ranks)
    assert row.algorithm == 2**31
    assert row.bus == pytest.approx(factor * 2**31)


def test_latency_is_told_for_the_mean_the_fastest_and_the_slowest_rank() -> None:
    row = measure("all-reduce", 1000, [1e-3, 2e-3, 6e-3])
    assert (row.mean, row.least, row.largest) == (pytest.approx(3e-3), 1e-3, 6e-3)
    assert row.values()["latency_us"] == {"mean": 3000, "min": 1000, "max": 6000}


@pytest.mark.parametrize(
    ("collective", "size", "item", "ranks", "elements"),
    [
        ("all-reduce", 1024, 4, 3, 256),
        ("all-gather", 1024, 4, 3, 255),  # what is divided is a multiple of the ranks
        ("reduce-scatter", 1024, 2, 8, 512),
        ("reduce-scatter", 8, 4, 64, 64),  # at least one for every rank
        ("broadcast", 1, 8, 4, 1),
    ],
)
def test_a_message_has_as_many_elements_as_fit(
    collective: str, size: int, item: int, ranks: int, elements: int
) -> None:
    assert count_elements(collective, size, item, ranks) == elements


@pytest.mark.parametrize(
    ("least", "largest", "factor", "sizes"),
    [(8, 128, 4, [8, 32, 128]), (8, 127, 4, [8, 32]), (64, 64, 2, [64]), (64, 8, 2, [64])],
)
def test_sizes_grow_by_a_factor(least: int, largest: int, factor: int, sizes: list[int]) -> None:
    assert message_sizes(least, largest, factor) == sizes


@pytest.mark.parametrize(
    ("typed", "size"), [("8", 8), ("64K", 65536), ("1m", 2**20), ("2G", 2**31), ("4KiB", 4096), ("64 MB", 2**26)]
)
def test_sizes_are_typed_as_people_write_them(typed: str, size: int) -> None:
    options = parse(AllreduceOptions, ["--min-bytes", typed, "--max-bytes", typed])
    assert (options.min_bytes, options.max_bytes) == (size, size)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--min-bytes", "many"], "type for example 8, 64K"),
        (["--min-bytes", "0"], "type for example 8, 64K"),
        (["--min-bytes", "2M", "--max-bytes", "1M"], "is less than"),
        (["--collectives", "all-reduce,all-together"], "'all-together' is not a collective; type some of all-reduce,"),
        (["--factor", "1"], "--factor"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(args: list[str], says: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse(AllreduceOptions, args)
    assert says in refused.value.format_message() + str(getattr(refused.value, "param_hint", ""))


def test_collectives_are_understood_with_underscores_and_once_each() -> None:
    options = parse(AllreduceOptions, ["--collectives", "Broadcast, all_reduce broadcast"])
    assert options.names == ["broadcast", "all-reduce"]


def test_the_largest_size_depends_on_the_device_unless_it_is_given() -> None:
    assert parse(AllreduceOptions, []).largest("cuda") == 2**30
    assert parse(AllreduceOptions, []).largest("cpu") == 2**24
    assert parse(AllreduceOptions, ["--min-bytes", "64M"]).largest("cpu") == 2**26
    assert parse(AllreduceOptions, ["--max-bytes", "1M"]).largest("cuda") == 2**20


@pytest.mark.parametrize("count", range(1, 9))
def test_links_are_tried_in_rounds_in_which_nobody_has_two(count: int) -> None:
    parts = rounds(range(count))
    for part in parts:
        ends = [rank for link in part for rank in link]
        assert len(ends) == len(set(ends))
    links = [frozenset(link) for part in parts for link in part]
    ring = {frozenset((rank, (rank + 1) % count)) for rank in range(count)} if count > 1 else set()
    assert sorted(map(sorted, links)) == sorted(map(sorted, ring))


FAST = {(0, 1): 0.01, (1, 2): 0.011, (2, 3): 0.012, (3, 0): 0.01}


@pytest.mark.parametrize(
    ("own", "links", "rank", "what", "certain"),
    [
        ([1, 1, 5, 1], FAST, 2, "own", True),
        ([1, 1, 1.2, 1], FAST, 2, "own", False),
        ([1, 1.1, 1, 1], FAST | {(1, 2): 0.5, (2, 3): 0.6}, 2, "link", True),
        ([1, 1.1, 1, 1], FAST | {(1, 2): 0.5}, 1, "own", False),  # a slow cable, not a slow rank
        ([1, 3, 1, 1], FAST | {(1, 2): 0.5, (2, 3): 0.6}, 1, "own", True),  # it may be why its link is slow
        ([1, 3], {(0, 1): 0.5}, 1, "own", True),
        ([1, 1.1], {(0, 1): 0.5}, 1, "own", False),  # whose end of the only link is slow nobody can tell
    ],
)
def test_the_slowest_rank_is_the_one_that_others_wait_for(
    own: list[float], links: dict[tuple[int, int], float], rank: int, what: str, certain: bool
) -> None:
    straggler = find_slowest(own, links)
    assert (straggler.rank, straggler.what, straggler.certain) == (rank, what, certain)
    assert ("no rank stands out" in straggler.text) is not certain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (size_text(8), "8 B"),
        (size_text(1536), "1.5 KiB"),
        (size_text(2**30), "1 GiB"),
        (time_text(12.34e-6), "12.3 µs"),
        (time_text(4.5e-3), "4.5 ms"),
        (time_text(1.25), "1.25 s"),
        (rate_text(412e9), "412 GB/s"),
        (rate_text(1.5e6), "1.5 MB/s"),
        (rate_text(800), "0.8 kB/s"),
    ],
)
def test_numbers_read_as_people_write_them(text: str, shown: str) -> None:
    assert text == shown


def test_the_summary_tells_the_first_collective_in_a_line() -> None:
    rows = [
        measure("all-reduce", 1024, [1e-5, 1e-5]),
        measure("all-reduce", 2**20, [1e-4, 1e-4]),
        measure("broadcast", 2**20, [1e-6, 1e-6]),
    ]
    assert (
        bandwidth_summary(rows, 2)
        == "all-reduce: up to 10.5 GB/s bus bandwidth (at 1 MiB), 10 µs at 1 KiB, 2 processes"
    )
