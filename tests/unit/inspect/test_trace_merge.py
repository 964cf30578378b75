"""The traces of all ranks as one file, and the table that is made of them."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from chrome_traces import PID, check_format, flying, read_merged, span, write_traces

from slipway.cli.trace import tell
from slipway.inspect.trace import merge
from slipway.inspect.trace_events import common, length, union, without
from slipway.inspect.trace_summary import own_times, summarise, table
from slipway.protocol.errors import LaunchError


def cells(spans: Any) -> set[int]:
    return {cell for begin, end in spans for cell in range(int(begin), int(end))}


def test_spans_are_joined_cut_and_taken_away_as_sets_are() -> None:
    dice = random.Random(1)
    for _ in range(300):
        one, other = (
            [(begin := dice.randrange(40), begin + dice.randrange(9)) for _ in range(dice.randrange(7))] for _ in "ab"
        )
        first, second = union(one), union(other)
        assert cells(first) == cells(one)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(first))
        assert cells(common(first, second)) == cells(one) & cells(other)
        assert cells(without(first, second)) == cells(one) - cells(other)
        assert length(first) == len(cells(one))


def test_communication_is_hidden_where_something_is_computed_meanwhile_and_exposed_elsewhere() -> None:
    events = [
        span("step 12", 0, 40, "user_annotation"),
        span("aten::mm", 0, 10),
        span("aten::mm", 12, 20),
        flying(5, 18),
        flying(15, 25),
        flying(0, 40, "long int"),  # the stop flag's: under way all the time, and nobody waits
        span("c10d::allreduce_", 20, 22),  # nobody computes in that
    ]
    found = summarise(3, events)
    assert (found.rank, found.steps, found.span, found.on_gpu) == (3, 1, 40, False)
    assert found.communication == 20  # from 5 to 25
    assert found.hidden == 5 + 8
    assert found.exposed == 2 + 5
    assert found.operators == {"aten::mm": (18, 2)}


def test_what_begins_a_collective_within_an_operator_is_no_computing() -> None:
    events = [span("autograd::engine", 0, 10), span("c10d::allreduce_", 2, 6), flying(2, 12)]
    assert summarise(0, events).hidden == 4


def test_on_gpus_kernels_compute_and_those_of_nccl_communicate() -> None:
    events = [
        span("aten::mm", 0, 100),
        span("nccl:all_reduce", 0, 90, "user_annotation"),
        span("ampere_sgemm<int>", 10, 30, "kernel", 7),
        span("Memcpy DtoD", 40, 45, "gpu_memcpy", 7),
        span("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 20, 50, "kernel", 20),
    ]
    found = summarise(0, events)
    assert (found.on_gpu, found.communication, found.hidden, found.exposed) == (True, 30, 15, 15)
    assert found.span == 40
    assert set(found.operators) == {"ampere_sgemm<int>", "Memcpy DtoD"}
    assert any("kernels" in line for line in table([found]))


def test_an_operators_own_time_is_without_what_it_calls() -> None:
    events = [
        span("linear", 0, 10),
        span("mm", 1, 4),
        span("copy", 2, 3),
        span("mm", 5, 9),
        span("mm", 10, 12),
        span("linear", 0, 5, tid=8),
    ]
    assert own_times(events) == {"linear": (3 + 5, 2), "mm": (2 + 4 + 2, 3), "copy": (1, 1)}


def test_the_same_moment_is_the_same_on_all_ranks_whatever_their_clocks_show(tmp_path: Path) -> None:
    ranks = [[span("aten::mm", 1000, 1010), flying(1010, 1030 + rank)] for rank in range(3)]
    merged = merge(write_traces(tmp_path / "step-00000012", ranks, offsets=(0, 5_000_000_000, -777_000_001)))
    events = read_merged(merged.path)
    check_format(events)
    reduced = [event for event in events if event["name"] == "gloo:all_reduce"]
    assert [event["ts"] for event in reduced] == pytest.approx([reduced[0]["ts"]] * 3, abs=0.01)
    assert [event["dur"] for event in reduced] == [20, 21, 22]
    assert reduced[0]["ts"] - next(e["ts"] for e in events if e["name"] == "aten::mm") == pytest.approx(10)
    assert (merged.first, merged.steps, merged.spread, merged.missing) == (11, 2, 2000, [])
    assert [one.rank for one in merged.summaries] == [0, 1, 2]


def test_ranks_are_processes_with_names_of_their_own(tmp_path: Path) -> None:
    own = [
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "ts": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": PID, "tid": 7, "ts": 1, "args": {"name": "thread 7 (python)"}},
        span("aten::mm", 5, 9),
        span("kernel", 6, 8, "kernel", 7, pid=0),
        span("PyTorch Profiler (0)", 0, 20, "Trace", "PyTorch Profiler", pid="Spans"),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 20},
        {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": PID, "tid": 7, "ts": 6},
        {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 7, "bp": "e"},
        flying(1, 5),
        flying(3, 7),
        flying(5, 6),
    ]
    merged = merge(write_traces(tmp_path / "mine", [own, own]))
    events = read_merged(merged.path)
    check_format(events)
    named = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 (node 0, n0)", "rank 1 (node 0, n0)", "rank 0 GPU 0", "rank 1 GPU 0"} < set(named)
    assert not [name for name in named if "GPU 3" in name], "nothing ran there"
    assert len(set(named.values())) == len(named) == 8
    arrows = [event["id"] for event in events if event["ph"] in "sf"]
    assert arrows == ["0.5", "0.5", "1.5", "1.5"]
    assert {event["s"] for event in events if event["ph"] == "i"} == {"p"}
    rows = [
        event["tid"]
        for event in events
        if event["name"] == "gloo:all_reduce" and event["pid"] == named["rank 1 (node 0, n0)"]
    ]
    assert len(set(rows)) == 2
    assert rows[0] == rows[2]
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads >= {"collectives", "collectives 2", "thread 7 (python)", "PyTorch Profiler"}


def test_ranks_without_a_trace_are_told_and_the_others_merged(tmp_path: Path) -> None:
    folder = write_traces(tmp_path / "mine", [[span("aten::mm", 0, 9)]] * 4, world_size=70)
    clocks = json.loads((folder / "clocks.json").read_text())
    clocks["ranks"][1] |= {"bytes": 0, "error": "RuntimeError: no profiler today"}
    (folder / "clocks.json").write_text(json.dumps(clocks))
    (folder / "rank-2.json.gz").write_bytes((folder / "rank-2.json.gz").read_bytes()[:-20])
    (folder / "rank-3.json.gz").unlink()
    merged = merge(folder)
    assert [one.rank for one in merged.summaries] == [0]
    assert merged.missing[0] == "rank 1: RuntimeError: no profiler today"
    assert merged.missing[1].startswith("rank 2: its trace cannot be read")
    assert merged.missing[2].startswith("rank 3: its trace cannot be read")
    assert merged.missing[3] == "the traces of the last 66 ranks were not kept"
    check_format(read_merged(merged.path))
    assert sum("left out" in line for line in tell(merged)) == 4


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "[" * 100_000, None], ids=range(6))
def test_where_nothing_can_be_read_nothing_is_merged(content: str | None, tmp_path: Path) -> None:
    folder = write_traces(tmp_path / "mine", [[span("aten::mm", 0, 9)]])
    data = b"nothing packed" if content is None else gzip.compress(content.encode())
    (folder / "rank-0.json.gz").write_bytes(data)
    with pytest.raises(LaunchError, match="There is nothing to merge"):
        merge(folder)
    assert not (folder / "trace.json.gz").exists()


@pytest.mark.parametrize("clocks", ["", "[]", "{}", '{"ranks": 1}', '{"ranks": [1, {"rank": -1}, {"rank": "0"}]}'])
def test_a_folder_without_clocks_holds_no_trace(clocks: str, tmp_path: Path) -> None:
    (tmp_path / "clocks.json").write_text(clocks)
    with pytest.raises(LaunchError, match="holds no trace"):
        merge(tmp_path)


def test_events_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"pid": 1}, {"ph": "X", "name": "a", "pid": 1, "tid": 1}, {"ph": "X", "name": 5, "pid": 1, "tid": 1, "ts": 0, "dur": 1},
        {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 0, "dur": -1}, {"ph": "X", "name": "c", "pid": [], "tid": 1, "ts": 0, "dur": 1},
        {"ph": "X", "name": "d", "pid": 1, "tid": 1, "ts": float("nan"), "dur": 1}, {"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": True, "dur": 1},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": []},
    ]  # fmt: skip
    folder = tmp_path / "mine"
    write_traces(folder, [[span("aten::mm", 0, 9)]])
    data = gzip.compress(json.dumps({"traceEvents": [1, *odd, span("aten::mm", 0, 9)]}).encode())
    (folder / "rank-0.json.gz").write_bytes(data)
    events = read_merged(merge(folder).path)
    check_format(events)
    assert [event["name"] for event in events if event["ph"] == "X"] == ["aten::mm"]


def test_the_table_says_what_took_the_time_and_who_waited(tmp_path: Path) -> None:
    ranks = [
        [
            span("step 12", 0, 10_000, "user_annotation"),
            span("step 13", 10_000, 20_000, "user_annotation"),
            span("aten::mm", 0, 6_000),
            span("aten::mm", 10_000, 16_000),
            span("x" * 100, 6_000, 8_000),
            flying(4_000, 8_000 + 50 * rank),
        ]
        for rank in range(20)
    ]
    lines = list(tell(merge(write_traces(tmp_path / "mine", ranks))))
    assert lines[0] == "steps 12 to 13 of 20 ranks, whose clocks were compared to within 0.019 ms"
    assert lines[1] == "a step took 10 ms"
    assert lines[3].split() == ["aten::mm", "6", "1", "85.7%"]
    assert "x" * 63 + "…" in lines[4]
    assert lines[4].split()[1:] == ["1", "0.5", "14.3%"]
    rows = [line.split() for line in lines[6:22]]
    assert [int(row[0]) for row in rows] == list(range(4, 20)), "those that wait most"
    assert rows[0] == ["4", "2.1", "2", "0.1", "1.0%"]
    assert lines[22] == "  and 4 more ranks, with shorter waits"
    assert lines[23].endswith("bytes; open it at https://ui.perfetto.dev")


def test_a_trace_that_ended_early_says_why(tmp_path: Path) -> None:
    folder = write_traces(tmp_path / "mine", [[span("aten::mm", 0, 9)]], steps=1, wanted=3, why="a snapshot follows")
    lines = list(tell(merge(folder)))
    assert lines[0] == "step 12 instead of 3, since a snapshot follows, of 1 rank"
    assert "  no communication" in lines
