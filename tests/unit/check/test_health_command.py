"""`slipway check` on one node, called as a user would; the products of matrices, which need torch, are made up."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway, make_devices

from slipway.check import examination
from slipway.check.finding import ok, sick

OTHER_NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid"}


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "look_at_products", lambda devices, environ: [ok("CPU product", "right")])
    monkeypatch.setattr(examination, "read_devices", lambda environ: make_devices())


def levels(out: str) -> dict[str, str]:
    return {row["what"]: row["level"] for row in json.loads(out)[0]["findings"]}


def test_a_healthy_node_ends_with_0_and_leaves_nothing(slipway: Slipway, tmp_path: Path) -> None:
    answer = slipway("check")
    assert answer.code == 0, answer.out
    assert "run directory" in answer.out
    assert "other nodes" not in answer.out
    assert "exit code 0: this node is fit for a job" in answer.out
    assert "\033" not in answer.out
    assert "slipway: check: matrix product on the CPU" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_json_is_a_list_of_nodes_with_their_findings(slipway: Slipway) -> None:
    (node,) = json.loads(slipway("check", "--json").out)
    assert (node["node"], node["host"]) == (0, socket.gethostname())
    assert set(node["findings"][0]) == {"what", "level", "found", "advice", "code"}


def test_a_sick_device_ends_with_77(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "look_at_products", lambda devices, environ: [sick("GPU 0 product", "wrong")])
    answer = slipway("check", "--run-dir", "/proc/none")  # a wrong configuration beside it
    assert answer.code == 77
    assert "exit code 77: this node is unhealthy" in answer.out
    assert answer.out.count("  error  ") == 2


def test_an_unresolvable_master_is_an_error_at_once_and_the_rest_is_skipped(slipway: Slipway) -> None:
    answer = slipway("check", "--json", **OTHER_NODE)
    assert answer.code == 78
    assert levels(answer.out) | {"MASTER_ADDR": "error", "other nodes": "skipped"} == levels(answer.out)


def test_local_never_goes_beyond_this_node(slipway: Slipway) -> None:
    answer = slipway("check", "--json", "--local", **OTHER_NODE)
    assert answer.code == 0, answer.out
    assert not {"MASTER_ADDR", "other nodes", "job"} & set(levels(answer.out))


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        (["--nnodes", "2"], {}, "2 nodes need MASTER_ADDR"),
        ([], {"RANK": "3"}, "WORLD_SIZE, the number of nodes, is not given"),
        (["--nproc-per-node", "gpu"], {}, "GPU"),
    ],
)
def test_a_job_that_makes_no_sense_is_a_row_among_the_others(
    slipway: Slipway, words: list[str], environ: dict[str, str], says: str
) -> None:
    answer = slipway("check", "--json", *words, **environ)
    assert answer.code == 78
    (row,) = [row for row in json.loads(answer.out)[0]["findings"] if row["what"] == "job"]
    assert says in row["found"]
    assert {"job", "memory", "CPU product", "other nodes"} <= set(levels(answer.out))


def test_with_a_launcher_per_process_the_nodes_are_not_met(slipway: Slipway) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    answer = slipway("check", "--json", **place)
    assert levels(answer.out)["other nodes"] == "skipped"
    assert "once per node" in answer.out


def test_a_wrong_setting_is_told_as_by_run(slipway: Slipway) -> None:
    answer = slipway("check", "--rendezvous-timeout", "soon")
    assert answer.code == 78
    assert "a whole number is needed" in answer.err
    assert slipway("check", "gpt").code == 2


def test_without_a_folder_for_temporary_files_the_rest_is_still_looked_at(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: Any) -> str:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.gettempdir", nowhere)
        answer = slipway("check", "--json")
        alone = slipway("check", "--json", "--runs", "/tmp/runs")
        elsewhere = slipway("check", "--json", "--runs", "/var/runs")
        met = slipway("check", "--json", RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost")
    assert answer.code == 78
    assert levels(answer.out)["temporary files"] == "error"
    assert levels(answer.out)["memory"] == "ok"
    assert levels(elsewhere.out)["run directory"] != "skipped"
    rows = {row["what"]: row for row in json.loads(alone.out)[0]["findings"]}
    for what in ("run directory", "cache"):
        assert (rows[what]["level"], rows[what]["found"]) == (
            "skipped",
            "not checked because of the error in temporary files",
        )
    assert [what for what, row in rows.items() if row["level"] == "error"] == ["temporary files"]
    assert met.code == 78
    assert levels(met.out)["other nodes"] == "skipped"


@pytest.mark.parametrize(("columns", "most"), [("", 110), ("80", 80), ("10", 60), ("500", 110)])
def test_the_table_is_as_wide_as_the_terminal_within_reason(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, columns: str, most: int
) -> None:
    long = [ok("CPU product", "right " * 60)]
    monkeypatch.setattr(examination, "look_at_products", lambda devices, environ: long)
    table = slipway("check", "--local", COLUMNS=columns).out
    width = max(len(line) for line in table.splitlines() if "right" in line)
    assert most - len("right ") < width <= most
