"""`slipway check` on several launchers of this machine: all show all nodes, and each ends with its own code."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import Launcher
from limits import small_disk

Start = Callable[..., Launcher]
Node = Callable[..., Launcher]


@pytest.fixture
def checked(node: Node, tmp_path: Path) -> Iterator[Node]:
    """Start the check of one node among two on this machine, with a folder for temporary files of its own."""

    def launch(rank: int, *words: str, **variables: str) -> Launcher:
        (tmp_path / f"tmp-{rank}").mkdir(exist_ok=True)
        return node(rank, 2, "check", *words, **{"TMPDIR": str(tmp_path / f"tmp-{rank}"), **variables})

    yield launch
    left = {path.name for folder in tmp_path.glob("tmp-*") for path in folder.iterdir()}
    assert {name for name in left if not name.startswith("torchinductor_")} == set(), "torch may make its cache there"
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


@pytest.mark.core
def test_two_nodes_check_each_other_and_both_show_both_with_the_bandwidth(checked: Node) -> None:
    jobs = [checked(rank) for rank in (1, 0)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    for own, job in zip((1, 0), jobs, strict=True):
        assert f"node {own}, {socket.gethostname()} (this node): " in job.text
        assert f"node {1 - own}, {socket.gethostname()}: " in job.text
        assert job.text.count("B/s bus bandwidth at 8 MiB, 2 processes, gloo") >= 2
        assert "all 2 are here" in job.text
        assert "exit code 0: this node is fit for a job\n" in job.text


def test_a_node_with_an_error_ends_with_its_code_and_its_peer_shows_the_error(checked: Node) -> None:
    jobs = [checked(0, "--json"), checked(1, "--runs", "/proc/none")]
    assert [job.end() for job in jobs] == [0, 78], jobs[0].text + jobs[1].text
    nodes = read_nodes(jobs[0])
    assert [each["node"] for each in nodes] == [0, 1]
    assert [row["what"] for row in nodes[0]["findings"] if row["level"] == "error"] == []
    assert [row["what"] for row in nodes[1]["findings"] if row["level"] == "error"] == ["run directory"]
    assert {row["what"] for each in nodes for row in each["findings"]} >= {"CPU product", "all-reduce", "other nodes"}


def test_what_others_found_is_shown_where_their_processes_cannot_meet(checked: Node) -> None:
    jobs = [checked(0), checked(1, "--runs", "/proc/none", GLOO_DEVICE_TRANSPORT="NONE")]
    assert [job.end() for job in jobs] == [78, 78], jobs[0].text + jobs[1].text
    table = jobs[0].text.rpartition("node 1, ")[2]
    assert "error    run directory" in table, jobs[0].text
    assert "unsupported gloo device" in jobs[0].text
    assert "slipway logs" not in jobs[1].text, "the run is gone by now"
    assert "→ the output of its processes is above" in jobs[1].text


def test_a_stop_while_waiting_ends_the_check(checked: Node) -> None:
    job = checked(0)
    job.wait_for("waiting for nodes: 1 of 2")
    job.signal(signal.SIGTERM)
    assert job.end(20) == 75, job.text
    assert "exit code" not in job.text


def read_nodes(job: Launcher) -> list[dict[str, Any]]:
    """What --json printed, among the lines on stderr."""
    lines = [line for line in job.lines if not line.startswith("slipway: ")]
    return json.loads("".join(lines))  # type: ignore[no-any-return]


@pytest.mark.needs("mounts")
def test_a_run_that_checks_first_starts_nothing_on_a_sick_node(slipway: Start, tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", "1m") as disk:
        refused = slipway("run", "--check", "--runs", str(disk), "linear", "--steps", "3")
        assert refused.process.returncode == 77, refused.text
        assert "error    run directory" in refused.text
        assert "nothing is started: this node is unhealthy" in refused.text
        assert not list(disk.glob("linear*"))
    fit = slipway("linear", "--check", "--steps", "3")
    assert fit.process.returncode == 0, fit.text
    assert fit.text.index("ok       run directory") < fit.text.index("linear: run directory")
