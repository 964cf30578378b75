"""Node infos -> differences -> table."""

from typing import Any

import pytest
from participants import make_info

from slipway.launch.rendezvous.membership import ROWS, draw_table, find_differences, fits


def compare(*changes: dict[str, Any], offsets: dict[int, float] | None = None, allow_uneven: bool = False) -> Any:
    infos = {rank: make_info(rank, **{"nodes": len(changes)} | change) for rank, change in enumerate(changes)}
    return find_differences(infos, offsets or {}, allow_uneven)


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
        ({"script": "0123456789ab"}, "script (checksum)", False),
        ({"gpus": ("NVIDIA H200",)}, "GPUs", False),
        ({"snapshot": 1500}, "newest snapshot", False),
        ({"run_dir": "other"}, "--run-dir (a name)", True),
    ],
)
def test_each_difference_is_named_and_weighed(change: dict[str, Any], name: str, must: bool) -> None:
    (difference,) = compare({"run_dir": "name"}, {"run_dir": "name"} | change, {"run_dir": "name"})
    assert (difference.name, difference.must) == (name, must)
    assert [ranks for _, ranks in difference.values] == [(0, 2), (1,)]


@pytest.mark.parametrize(
    ("directories", "differs"),
    [
        (("/a/llm", "/b/llm"), ()),
        (("/a/llm", "/a/vit"), (("--run-dir (a path)", False),)),
        (("llm", "", "vit"), (("--run-dir (a name)", True),)),
        (("/a/llm", "", "/a/vit"), (("--run-dir (a path)", False),)),
        # Who has none takes what the others have; a name and a path cannot be compared.
        (("llm", ""), ()),
        (("/a/llm", ""), ()),
        (("llm", "/a/vit"), ()),
    ],
)
def test_run_directories_differ_by_name_and_by_the_last_part_of_a_path(
    directories: tuple[str, ...], differs: tuple[tuple[str, bool], ...]
) -> None:
    found = compare(*({"run_dir": directory} for directory in directories))
    assert tuple((difference.name, difference.must) for difference in found) == differs
    infos = [make_info(rank, 2, run_dir=directory) for rank, directory in enumerate(directories)]
    fit = all(fits(info, other, allow_uneven=False) for info in infos for other in infos)
    assert fit is not any(must for _, must in differs)


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
        f"{'':26}(type the same command on all nodes)",
        "  processes per node      2                             0, 1 (gpu07, gpu08)",
        "                          8                             2 (gpu09)",
        f"{'':26}(give every node the same number, or --allow-uneven to run with the smallest on all)",
    ]


def test_the_nodes_stand_in_one_column_behind_long_values() -> None:
    table = draw_table(compare({}, {"arguments": ("--out", "a" * 40)}), {0: "gpu07", 1: "gpu08"})
    assert [table[0].index("nodes"), table[1].index("0 (gpu07)"), table[2].index("1 (gpu08)")] == [74, 74, 74]
    assert table[3].strip() == "(type the same command on all nodes)"


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
    assert table[-1] == f"  … and {1001 - ROWS} more lines"


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({}, True),
        ({"driver": "580.1", "snapshot": 7, "gpus": ("NVIDIA H200",)}, True),
        ({"problem": "no GPU"}, False),
        *(({name: "other"}, False) for name in ("workload", "backend", "version", "torch", "nccl", "image")),
    ],
)
def test_a_node_fits_where_all_that_must_agree_does(change: dict[str, Any], agree: bool) -> None:
    assert fits(make_info(1, 2, **change), make_info(0, 2), allow_uneven=False) is agree


@pytest.mark.parametrize("allowed", [True, False])
def test_a_node_with_another_number_of_processes_fits_where_that_is_allowed(allowed: bool) -> None:
    assert fits(make_info(1, 2, processes=4), make_info(0, 2), allow_uneven=allowed) is allowed
    assert not fits(make_info(1, 2, processes=4, backend="nccl"), make_info(0, 2), allow_uneven=allowed)


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ((), "no GPU"),
        (("NVIDIA H100",) * 8, "8 × NVIDIA H100"),
        (("NVIDIA H200", "NVIDIA H100", "NVIDIA H200"), "1 × NVIDIA H100, 2 × NVIDIA H200"),
    ],
)
def test_gpus_are_counted_by_model(gpus: tuple[str, ...], text: str) -> None:
    (difference,) = compare({"gpus": ("L4",)}, {"gpus": gpus})
    assert [value for value, _ in difference.values] == ["1 × L4", text]


def test_what_is_not_there_is_called_none() -> None:
    (difference,) = compare({"snapshot": 0}, {})
    assert difference.values == (("0", (0,)), ("none", (1,)))


def test_the_snapshot_of_a_newcomer_may_differ_where_the_job_is_under_way() -> None:
    assert compare({"snapshot": 40, "tries": 1}, {"snapshot": None}) == ()
    found = compare({"snapshot": 40, "tries": 1}, {"snapshot": None, "torch": "other", "driver": "580.1"})
    assert [difference.name for difference in found] == ["torch", "driver"]


@pytest.mark.parametrize(("offset", "astray"), [(0.0, False), (2.0, False), (-2.0, False), (2.1, True), (-2.1, True)])
def test_two_seconds_between_clocks_are_nothing(offset: float, astray: bool) -> None:
    assert bool(compare({}, {}, offsets={0: 0.0, 1: offset})) is astray


def test_each_clock_that_is_astray_is_told_in_the_order_of_the_nodes() -> None:
    (difference,) = compare({}, {}, {}, offsets={2: 60.0, 0: 0.0, 1: -3.0})
    assert difference.values == (("-3.0 s", (1,)), ("+60.0 s", (2,)))


@pytest.mark.parametrize(("length", "whole"), [(71, True), (72, True), (73, False)])
def test_a_value_is_shown_whole_where_it_fits(length: int, whole: bool) -> None:
    """Arguments that begin alike are cut there, a dozen characters before the first that differs."""
    values = ["x" * (length - 1) + letter for letter in "ab"]
    table = draw_table(compare({"workload": values[0]}, {"workload": values[1]}), {0: "a", 1: "b"})
    told = [line[26:].split("  ")[0] for line in table[1:3]]
    assert told == (values if whole else [f"…{'x' * 12}a", f"…{'x' * 12}b"])


def test_what_is_still_too_long_loses_its_end() -> None:
    values = ["a" * 90, "b" * 72]
    table = draw_table(compare({"workload": values[0]}, {"workload": values[1]}), {0: "a", 1: "b"})
    assert [line[26:].split("  ")[0] for line in table[1:3]] == ["a" * 71 + "…", values[1]]


def test_an_empty_value_is_called_none() -> None:
    table = draw_table(compare({"arguments": ()}, {}), {0: "a", 1: "b"})
    assert table[1].split() == ["arguments", "none", "0", "(a)"]


@pytest.mark.parametrize(
    ("many", "hosts"), [(1, "0 (h)"), (2, "0, 1 (h, h)"), (3, "0-2 (h, h, h)"), (4, "0-3 (h, h, h, …)")]
)
def test_three_hosts_are_named(many: int, hosts: str) -> None:
    table = draw_table(compare(*[{}] * many, {"torch": "x"}), dict.fromkeys(range(many + 1), "h"))
    assert table[1].endswith(f"  {hosts}")


def test_forty_lines_of_a_table_are_shown_whole() -> None:
    for many, lines in ((39, 40), (40, 41), (49, 41)):
        table = draw_table(compare(*[{"driver": str(rank)} for rank in range(many)]), dict.fromkeys(range(many), "h"))
        assert len(table) == lines
    assert table[-1] == "  … and 10 more lines"
