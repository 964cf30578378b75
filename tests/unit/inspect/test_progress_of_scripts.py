"""How far the ranks of a script are, as a launcher sees it and `slipway status` shows it."""

import json
from pathlib import Path

import pytest

from slipway.inspect.status import Status, status_json, status_lines
from slipway.launch.hangs.watch import LINE, Sight, count_done, progress
from slipway.launch.run_directory.node_directory import NodeDirectory, RankStatus
from slipway.launch.run_directory.records import OutcomeRecord, RunRecord
from slipway.process.folder_lock import Holder


def test_rates_are_those_since_the_last_look() -> None:
    before = {0: Sight(10.0, 100, 5.0), 1: Sight(10.0, None, 5.0)}
    now = {0: Sight(20.0, 150, 14.0), 1: Sight(20.0, None, 5.0), 2: Sight(20.0, 7, 1.0, 87)}
    assert progress(before, now, {0: "epoch 3", 1: "", 2: "x" * 500}.__getitem__) == {
        "0": {"collectives": 150, "per_second": 5.0, "cores": 0.9, "gpu": None, "line": "epoch 3"},
        "1": {"collectives": None, "per_second": None, "cores": 0.0, "gpu": None, "line": ""},
        "2": {"collectives": 7, "per_second": None, "cores": None, "gpu": 87, "line": "x" * LINE},
    }


def test_the_collectives_of_all_groups_count() -> None:
    assert count_done({"0/0": [6, 5], "1/0": [2, 2], "2/0": [1, -1]}) == 7
    assert count_done(None) is None


def make_status(*workers: RankStatus, hang: str = "") -> Status:
    node, holder = NodeDirectory(Path("run/node-0")), Holder("n0", 7, "", 1, 1.0, "x")
    known = (Path("run"), RunRecord(workload="own"), (node,), (holder,), None, (), (), None, OutcomeRecord(), {})
    return Status(*known, hang, workers)


def test_status_shows_a_row_per_rank_and_what_hangs() -> None:
    lines = status_lines(
        make_status(
            RankStatus(0, 1234, 12.345, 0.98, None, "epoch 3"),
            RankStatus(1, None, None, 0.0, None, ""),
            hang="rank 1 has not reached all_reduce #2",
        )
    )
    assert "  hang        rank 1 has not reached all_reduce #2" in lines
    assert lines[-3:] == [
        "    rank  collectives  per second  cores  last line",
        "       0        1,234       12.35   0.98  epoch 3",
        "       1            –           –      0",
    ]


def test_a_column_shows_how_busy_gpus_are_where_anybody_knows() -> None:
    rows = [RankStatus(0, 12, 1.0, 0.98, 87.0, "epoch 3"), RankStatus(1, 12, 1.0, 0.5, None, "")]
    assert status_lines(make_status(*rows))[-3:] == [
        "    rank  collectives  per second  cores    gpu  last line",
        "       0           12           1   0.98   87 %  epoch 3",
        "       1           12           1    0.5      –",
    ]


def test_json_has_the_same() -> None:
    shown = json.loads(json.dumps(status_json(make_status(RankStatus(0, 1, 2.0, 3.0, 4.0, "x")))))
    assert shown["workers"] == [{"rank": 0, "collectives": 1, "per_second": 2.0, "cores": 3.0, "gpu": 4.0, "line": "x"}]
    assert shown["hang"] is None


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({}, []),
        ({"ranks": []}, []),
        ({"ranks": {"x": {}, "-1": {}, "0": 3}}, []),
        ({"ranks": {"2": {"collectives": "many"}}}, []),
        ({"ranks": {"2": {"per_second": None}}}, [RankStatus(2)]),
        (
            {"ranks": {"0": {"collectives": 5, "per_second": 1, "cores": 0.5, "line": "here"}}},
            [RankStatus(0, 5, 1.0, 0.5, None, "here")],
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_passed_over(tmp_path: Path, content: object, found: list[RankStatus]) -> None:
    (tmp_path / "ranks.json").write_text(json.dumps(content))
    assert NodeDirectory(tmp_path).workers() == found
