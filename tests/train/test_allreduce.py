"""Collectives between real processes: what is measured, that wrong numbers are found, and who is named as slow."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import faulty_collectives
import faulty_worker
import pytest
import torch
from test_charts import points, read
from training_jobs import Run

from slipway.train.measure.collectives import CollectiveBuffers

Start = Callable[..., Run]
SMALL = ("--min-bytes", "1K", "--max-bytes", "64K", "--factor", 8, "--iterations", 2, "--warmup-iterations", 1)
NAMES = ["all-reduce", "all-gather", "reduce-scatter", "broadcast"]


@pytest.fixture
def collectives(job: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Measure in several processes, with faults."""
    monkeypatch.setattr(faulty_worker, "work", faulty_collectives.work)
    return lambda *args, **more: job("allreduce", *args, **more)


def found(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run.folder / "allreduce.json").read_text())
    return values


@pytest.mark.core
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_three_processes_measure_every_collective_at_every_size(collectives: Start, dtype: str) -> None:
    run = collectives(*SMALL, "--dtype", dtype, processes=3)
    assert run.exit_code == 0, run.output
    values, item = found(run), 2 if dtype == "bf16" else 4
    rows = [(row["collective"], row["bytes"]) for row in values["results"]]
    even, divided = [1024, 8192, 65536], [size // (3 * item) * 3 * item for size in (1024, 8192, 65536)]
    assert rows == [(name, size) for name in NAMES for size in (divided if name in NAMES[1:3] else even)]
    for row in values["results"]:
        latency = row["latency_us"]
        assert 0 < latency["min"] <= latency["mean"] <= latency["max"]
        factor = {"all-reduce": 4 / 3, "broadcast": 1}.get(row["collective"], 2 / 3)
        assert row["bus_gb_per_second"] == pytest.approx(factor * row["algorithm_gb_per_second"], abs=2e-6)
        assert row["algorithm_gb_per_second"] == pytest.approx(row["bytes"] / latency["mean"] / 1e3, rel=1e-2, abs=2e-6)
    assert values["complete"]
    assert (values["processes"], values["backend"], values["device"], values["skipped"]) == (3, "gloo", "cpu", {})
    assert [outcome["outcome"] for outcome in run.outcomes] == ["finished"] * 3
    assert run.outcomes[0]["message"].startswith("all-reduce: up to ")
    assert (run.folder / "allreduce.svg").read_text().startswith("<svg ")
    charts = read(run.folder / "tensorboard")
    assert [step for step, _ in points(charts, "throughput/broadcast_bus_gb_per_second")] == even
    assert json.loads((run.folder / "options.json").read_text())["dtype"] == dtype


def test_the_table_is_printed_while_it_goes(collectives: Start) -> None:
    lines = collectives(*SMALL, "--collectives", "broadcast,all_reduce").output.splitlines()
    assert lines[0].startswith("allreduce: 2 processes, gloo on cpu, fp32")
    table = lines[1:8]
    assert [line.split()[0] for line in table] == ["collective", *["broadcast"] * 3, *["all-reduce"] * 3]
    assert len(set(map(len, table))) == 1
    assert [line[16:26].strip() for line in table[1:4]] == ["1 KiB", "8 KiB", "64 KiB"]
    assert lines[8].startswith("slowest rank: ")


@pytest.mark.pull
@pytest.mark.parametrize(("name", "size"), [("all-reduce", 8192), ("all-gather", 65536), ("reduce-scatter", 1024)])
def test_a_wrong_result_ends_the_run_and_is_named(collectives: Start, name: str, size: int) -> None:
    run = collectives(*SMALL, wrong=[1, name, size])
    assert run.exit_code == 1
    assert [outcome["outcome"] for outcome in run.outcomes] == ["peer", "unhealthy"]
    assert run.outcomes[1]["message"].startswith(f"{name} of {size // 1024} KiB: rank 1 got a wrong result: element ")
    assert found(run)["complete"] is False


@pytest.mark.pull
def test_the_rank_that_is_slow_at_its_own_work_is_named(collectives: Start) -> None:
    run = collectives(*SMALL, processes=3, slow=[1, 0.1])
    assert run.exit_code == 0, run.output
    slowest = found(run)["slowest"]
    assert (slowest["rank"], slowest["host"], slowest["what"], slowest["certain"]) == (
        1, socket.gethostname(), "own", True,
    )  # fmt: skip
    assert slowest["seconds"] == pytest.approx(12 * 0.1)
    assert f"slowest rank: 1 ({socket.gethostname()}): 1.2 s for its own work" in run.output, run.output


def test_a_collective_that_the_back_end_lacks_is_skipped_with_the_reason(collectives: Start) -> None:
    run = collectives(*SMALL, lacking="reduce_scatter_tensor")
    assert run.exit_code == 0, run.output
    assert found(run)["skipped"] == {"reduce-scatter": "Backend gloo does not support reduce_scatter_tensor"}
    assert {row["collective"] for row in found(run)["results"]} == set(NAMES) - {"reduce-scatter"}
    assert "reduce-scatter  skipped: Backend gloo does not support reduce_scatter_tensor\n" in run.output


def test_a_stop_ends_it_between_two_sizes_and_another_start_measures_all(collectives: Start) -> None:
    run = collectives(*SMALL, "--collectives", "all-reduce", stop=3)
    assert run.exit_code == 0
    assert [outcome["outcome"] for outcome in run.outcomes] == ["stopped"] * 2
    assert "1 of 3 measurements" in run.outcomes[0]["message"]
    assert (found(run)["complete"], len(found(run)["results"])) == (False, 1)
    again = collectives(*SMALL, "--collectives", "all-reduce", resume="auto")
    assert again.exit_code == 0
    assert (found(again)["complete"], len(found(again)["results"])) == (True, 3)


def test_alone_nothing_travels(train: Start) -> None:
    run = train("allreduce")
    assert run.exit_code == 0
    assert found(run)["results"] == []
    assert "a single process has no communication to test" in run.outcomes[0]["message"]
    assert not (run.folder / "allreduce.svg").exists()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 5, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_known_numbers_are_right_for_any_number_of_ranks(name: str, ranks: int, dtype: torch.dtype) -> None:
    each, total = 7, 7 * ranks
    given = [
        CollectiveBuffers(
            name, torch.empty(each if name == "all-gather" else total, dtype=dtype), torch.empty(0), rank, ranks
        )
        for rank in range(ranks)
    ]
    for buffers in given:
        buffers.fill()
    numbers = torch.stack([buffers.given for buffers in given]).double()
    results = {
        "all-reduce": numbers.sum(0), "all-gather": numbers.flatten(), "broadcast": numbers[0],
        "reduce-scatter": numbers.sum(0)[-each:],
    }  # fmt: skip
    last = CollectiveBuffers(name, given[-1].given, results[name].to(dtype), ranks - 1, ranks)
    assert last.check() == ""
    for harm in (torch.nan, last.result[2] + 64):
        kept = last.result.clone()
        last.result[2] = harm
        assert last.check().startswith("element 2 is ")
        last.result.copy_(kept)


def test_a_rank_too_many_or_too_few_in_a_sum_is_noticed() -> None:
    for rank in range(4):
        ranks = [CollectiveBuffers("all-reduce", torch.empty(16), torch.empty(16), rank, 4) for rank in range(4)]
        for buffers in ranks:
            buffers.fill()
        total = torch.stack([buffers.given for buffers in ranks]).sum(0)
        for wrong in (total - ranks[rank].given, total + ranks[rank].given):
            assert CollectiveBuffers("all-reduce", wrong, wrong, 0, 4).check()


def test_a_run_can_be_repeated_in_its_folder_by_hand(train: Start) -> None:
    assert [train("allreduce", folder="twice").exit_code for _ in range(2)] == [0, 0]
