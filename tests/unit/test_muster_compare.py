"""Cards -> differences -> table."""

from typing import Any

import pytest
from participants import make_card

from slipway.launch.muster.compare import ROWS, compress, draw_table, find_differences


def compare(*changes: dict[str, Any], offsets: dict[int, float] | None = None, allow_uneven: bool = False) -> Any:
    cards = {rank: make_card(rank, **{"nodes": len(changes)} | change) for rank, change in enumerate(changes)}
    return find_differences(cards, offsets or {}, allow_uneven)


def test_nodes_that_fit_have_no_differences() -> None:
    assert compare({}, {"host": "other", "run": "other", "attempt": 5, "runtime": "docker"}) == ()


@pytest.mark.parametrize(
    ("change", "name", "must"),
    [
        ({"nodes": "4"}, "WORLD_SIZE (nodes)", True),
        ({"workload": "gpt"}, "workload", True),
        ({"arguments": ("--epochs", "3")}, "arguments", True),
        ({"processes": 4}, "processes per node", True),
        ({"backend": "nccl"}, "backend", True),
        ({"version": "0.2.0"}, "slipway", True),
        ({"torch": "2.10.0+cpu"}, "torch", True),
        ({"torch": None}, "torch", True),
        ({"nccl": "2.28.9"}, "NCCL", True),
        ({"data": "5eed"}, "embedded data", True),
        ({"image": "0.1.0-abc"}, "image", True),
        ({"driver": "580.1"}, "driver", False),
        ({"gpus": ("NVIDIA H200",)}, "GPUs", False),
        ({"snapshot": 1500}, "newest snapshot", False),
    ],
)
def test_each_difference_is_named_and_weighed(change: dict[str, Any], name: str, must: bool) -> None:
    (difference,) = compare({}, change, {})
    assert (difference.name, difference.must) == (name, must)
    assert [ranks for _, ranks in difference.values] == [(0, 2), (1,)]


def test_uneven_process_counts_are_a_warning_where_they_are_allowed() -> None:
    (difference,) = compare({}, {"processes": 4}, allow_uneven=True)
    assert not difference.must


def test_clocks_that_are_seconds_apart_are_a_warning() -> None:
    (difference,) = compare({}, {}, {}, offsets={0: 0.0, 1: -7.25, 2: 1.0})
    assert difference.values == (("-7.2 s", (1,)),)
    assert not difference.must


def test_the_table_says_who_differs_in_what() -> None:
    table = draw_table(
        compare({}, {"arguments": ("--epochs", "3")}, {"processes": 8}), {0: "gpu07", 1: "gpu08", 2: "gpu09"}
    )
    assert [line.rstrip() for line in table] == [
        "  what                    value                         nodes",
        "  arguments               --epochs 2                    0, 2 (gpu07, gpu09)",
        "                          --epochs 3                    1 (gpu08)",
        "  processes per node      2                             0, 1 (gpu07, gpu08)",
        "                          8                             2 (gpu09)",
        f"{'':26}(give every node the same number, or --allow-uneven to run with the smallest on all)",
    ]


def test_long_arguments_are_cut_to_where_they_differ() -> None:
    long = ("--data", "/a/very/long/path/" * 10)
    table = draw_table(
        compare({"arguments": (*long, "--lr", "1")}, {"arguments": (*long, "--lr", "2")}), {0: "a", 1: "b"}
    )
    assert "--lr 1" in table[1]
    assert "--lr 2" in table[2]
    assert max(len(line) for line in table) < 130


def test_a_thousand_ways_to_differ_stay_one_page() -> None:
    changes = [{"driver": str(number)} for number in range(1000)]
    table = draw_table(compare(*changes), dict.fromkeys(range(1000), "host"))
    assert len(table) == ROWS + 1
    assert table[-1].endswith("lines more")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3, 6, 7), "3, 6, 7"),
        ((5, 4, 3, 9), "3-5, 9"),
        ((), ""),
        (range(0, 100, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38 and 30 more"),
        (range(4096), "0-4095"),
    ],
)
def test_ranks_are_written_short(ranks: Any, text: str) -> None:
    assert compress(ranks) == text
