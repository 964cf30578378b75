"""`slipway workloads`, and what the catalog says of a workload that leaves nothing to resume from."""

from __future__ import annotations

import json

import pytest
from stand_ins import Slipway

from slipway.cli.arguments import read_job
from slipway.launch.resolve.catalog import WORKLOADS


def test_every_workload_has_a_line_with_its_data(slipway: Slipway) -> None:
    answer = slipway("workloads")
    assert (answer.code, answer.err) == (0, "")
    table, hint = answer.out.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == list(WORKLOADS)
    for line, workload in zip(table.splitlines(), WORKLOADS.values(), strict=True):
        assert workload.summary in line
        assert line.endswith(f"data: {workload.data or 'none'}")
    assert "slipway NAME --help" in hint


def test_the_json_form_says_the_same(slipway: Slipway) -> None:
    rows = json.loads(slipway("workloads", "--json").out)
    assert [row["name"] for row in rows] == list(WORKLOADS)
    assert set(rows[0]) == {"name", "summary", "data", "help"}
    assert rows[0]["help"] == f"slipway {rows[0]['name']} --help"


def test_only_collectives_have_no_data() -> None:
    assert [name for name, workload in WORKLOADS.items() if not workload.data] == ["allreduce"]


def test_what_cannot_go_on_is_not_started_again_unless_asked(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_job(["allreduce"], {}).restarts == 0
    assert read_job(["linear"], {}).restarts == 3
    monkeypatch.setenv("SLIPWAY_MAX_RESTARTS", "2")
    assert read_job(["allreduce"], {}).restarts == 2
