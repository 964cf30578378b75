"""Jobs that outlive their nodes: lost ones are replaced or done without, frozen ones come back, stops reach all.

Agent and workers are those without torch; a rank is held while something happens to a node.
"""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Node = Callable[..., Launcher]
JOB = ("linear", "--steps", "40", "--save-every", "10", "--log-every", "10")
UNDER_WAY = Rule("hold", step=15)


def start(node: Node, nodes: int | str, *ranks: int, **more: str) -> list[Launcher]:
    """Nodes with disks of their own."""
    return [node(rank, nodes, *JOB, "--runs", f"disk-{rank}", **more) for rank in ranks]


def end_all(jobs: list[Launcher]) -> list[int]:
    return [job.end() for job in jobs]


@pytest.mark.core
def test_a_killed_node_and_then_node_0_are_replaced_by_ones_with_empty_disks(
    node: Node, rules: Rules, tmp_path: Path
) -> None:
    later = Rule("hold", step=25, rank=1, attempt=2)
    began, held = time.monotonic(), rules.variables(UNDER_WAY, later, pause=0.1)
    jobs = start(node, 2, 0, 1, **held)
    rules.wait_for(UNDER_WAY, jobs[0])
    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("waiting for nodes again, for attempt 2")
    jobs[1] = node(1, 2, *JOB, "--runs", "disk-new-1", **held)
    rules.wait_for(later, jobs[1])
    assert "step-00000010" in jobs[0].text, "it has gone on from node 0's disk"
    jobs[0].signal(signal.SIGKILL)
    jobs[1].wait_for("for attempt 3")
    jobs[0] = node(0, 2, *JOB, "--runs", "disk-new-0", **held)
    assert end_all(jobs) == [0, 0], jobs[0].text + jobs[1].text
    for job in jobs:
        assert "finished on 2 nodes after 3 attempts" in job.text
    runs = {path.name for disk in tmp_path.glob("disk-*") for path in disk.iterdir() if path.is_dir()}
    assert len(runs) == 1, "all went on with the same run"
    record = json.loads(next((tmp_path / "disk-new-0").glob("*/run.json")).read_text())
    assert record["attempt"] == 3
    told = json.loads(next((tmp_path / "disk-new-0").glob("*/outcome.json")).read_text())["ledger"]
    assert told["attempts"] == 3
    assert {"starting", "training", "restarting", "rejoining"} <= set(told["seconds"])
    assert told["wall"] <= time.monotonic() - began + 0.1, "no second is booked twice, whoever keeps the books"


def test_a_node_that_never_comes_back_ends_the_job_with_76_and_a_record(
    node: Node, rules: Rules, tmp_path: Path
) -> None:
    words = (*JOB, "--rendezvous-timeout", "10")
    jobs = [node(rank, 2, *words, **rules.variables(UNDER_WAY, pause=0.1)) for rank in (0, 1)]
    rules.wait_for(UNDER_WAY, jobs[0])
    jobs[0].signal(signal.SIGKILL)
    assert jobs[1].end() == 76, jobs[1].text
    assert "gave up after 10 s; missing node rank 0" in jobs[1].text
    outcome = json.loads(next(tmp_path.glob("runs/*/outcome.json")).read_text())
    assert (outcome["code"], len(outcome["attempts"])) == (76, 2)


def start_pods(node: Node, rules: Rules, *ranks: int, disk: str = "disk") -> list[Launcher]:
    """Pods of an Indexed Job, which creates one that ended with 75 again, with an empty disk."""
    more = rules.variables(UNDER_WAY, pause=0.1)
    return [node(rank, 2, *JOB, "--runs", f"{disk}-{rank}", JOB_COMPLETION_INDEX=str(rank), **more) for rank in ranks]


@pytest.mark.pull
def test_a_pod_that_is_told_to_go_is_replaced_alone_and_no_step_is_lost(node: Node, rules: Rules) -> None:
    told = 0  # of pod 1 is tests/k8s/test_rehearsal_eviction.py
    pods = start_pods(node, rules, 0, 1)
    rules.wait_for(UNDER_WAY, pods[0])
    leaves, stays = pods[told], pods[1 - told]
    leaves.signal(signal.SIGTERM)
    leaves.wait_for("SIGTERM received")
    rules.let_go(UNDER_WAY)
    assert leaves.end() == 75, leaves.text
    assert "this node leaves, and the others wait for its replacement" in leaves.text
    stays.wait_for(f"for attempt 2 with another node {told}")
    [pods[told]] = start_pods(node, rules, told, disk="disk-new")
    assert end_all(pods) == [0, 0], pods[0].text + pods[1].text
    assert "finished on 2 nodes after 2 attempts" in stays.text
    stopped = re.findall(r"stopped by the system: .*stopped at step (\d+)", stays.text)
    assert stopped
    assert re.findall(r"resuming from \S*step-0*(\d+)", pods[0].text) == stopped, "no step is lost, or made again"
