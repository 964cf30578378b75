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


def test_a_launcher_that_freezes_beside_its_workers_comes_back_when_it_thaws(node: Node, rules: Rules) -> None:
    jobs = start(node, 2, 0, 1, **rules.variables(UNDER_WAY, pause=0.1), SLIPWAY_HEARTBEAT_TIMEOUT="8")
    rules.wait_for(UNDER_WAY, jobs[0])
    jobs[1].signal(signal.SIGSTOP)
    jobs[0].wait_for("a node was lost: node 1")
    assert "no heartbeat for 8 s" in jobs[0].text
    jobs[1].signal(signal.SIGCONT)
    assert end_all(jobs) == [0, 0], jobs[0].text + jobs[1].text
    assert all("finished on 2 nodes after 2 attempts" in job.text for job in jobs)
    assert "a node was lost: node 1" in jobs[1].text, "it was this one"
    assert "it was frozen for" in jobs[1].text


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


def test_an_elastic_job_shrinks_by_a_stop_and_by_a_loss_and_takes_a_newcomer_in(node: Node, rules: Rules) -> None:
    later = Rule("hold", step=25, attempt=2)
    more = {**rules.variables(UNDER_WAY, later, pause=0.1), "SLIPWAY_ELASTIC_WINDOW": "4"}
    jobs = start(node, "1:3", 0, 1, 2, **more)
    rules.wait_for(UNDER_WAY, jobs[0])
    assert "3 nodes × 1 CPU process" in jobs[0].text
    jobs[1].signal(signal.SIGTERM)
    jobs[1].wait_for("SIGTERM received")
    rules.let_go(UNDER_WAY)
    assert jobs[1].end() == 75, jobs[1].text
    jobs[0].wait_for("for attempt 2 without node 1")
    rules.wait_for(later, jobs[0])
    assert "2 nodes × 1 CPU process = 2 processes" in jobs[0].text
    newcomer = start(node, "1:3", 1, **more)[0]
    jobs[0].wait_for("is present, and joins at the next attempt")
    jobs[2].signal(signal.SIGKILL)
    assert jobs[0].end() == newcomer.end() == 0, jobs[0].text + newcomer.text
    assert "finished on 2 nodes after 3 attempts" in newcomer.text
    assert "attempt 3" in newcomer.text


SAVES = """
import os, signal, sys, time
def save(number, frame):
    open("saved-" + os.environ["RANK"], "w").write(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
while True:  # A signal that comes right before a sleep is handled by Python after it.
    time.sleep(0.1)
"""


@pytest.mark.pull
def test_a_users_script_is_stopped_on_all_nodes(node: Node, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SAVES)
    jobs = [node(rank, 2, "own.py", **rules.variables()) for rank in (0, 1)]
    for job in jobs:
        job.wait_for("waiting\n")
    jobs[1].signal(signal.SIGTERM)
    assert end_all(jobs) == [75, 75], jobs[0].text + jobs[1].text
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == ["SIGTERM", "SIGTERM"]
    assert "SIGTERM on node 1" in jobs[0].text


@pytest.mark.pull
def test_a_stop_while_nodes_wait_ends_all_that_wait(node: Node) -> None:
    jobs = [node(rank, 3, "linear") for rank in (0, 1)]
    for job in jobs:
        job.wait_for("waiting for nodes: 2 of 3")
    jobs[1].signal(signal.SIGTERM)
    assert end_all(jobs) == [75, 75], jobs[0].text + jobs[1].text
    assert "SIGTERM on node 1" in jobs[0].text


def start_pods(node: Node, rules: Rules, *ranks: int, disk: str = "disk") -> list[Launcher]:
    """Pods of an Indexed Job, which creates one that ended with 75 again, with an empty disk."""
    more = rules.variables(UNDER_WAY, pause=0.1)
    return [node(rank, 2, *JOB, "--runs", f"{disk}-{rank}", JOB_COMPLETION_INDEX=str(rank), **more) for rank in ranks]


def tell_to_go(rules: Rules, pod: Launcher, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to a pod, and let its workers save once they are to."""
    pod.signal(number)
    pod.wait_for(f"{number.name} received")
    rules.let_go(UNDER_WAY)


@pytest.mark.pull
def test_a_pod_that_is_told_to_go_is_replaced_alone_and_no_step_is_lost(node: Node, rules: Rules) -> None:
    told = 0  # of pod 1 is tests/k8s/test_rehearsal_eviction.py
    pods = start_pods(node, rules, 0, 1)
    rules.wait_for(UNDER_WAY, pods[0])
    leaves, stays = pods[told], pods[1 - told]
    tell_to_go(rules, leaves)
    assert leaves.end() == 75, leaves.text
    assert "this node leaves, and the others wait for its replacement" in leaves.text
    stays.wait_for(f"for attempt 2 with another node {told}")
    [pods[told]] = start_pods(node, rules, told, disk="disk-new")
    assert end_all(pods) == [0, 0], pods[0].text + pods[1].text
    assert "finished on 2 nodes after 2 attempts" in stays.text
    stopped = re.findall(r"stopped by the system: .*stopped at step (\d+)", stays.text)
    assert stopped
    assert re.findall(r"resuming from \S*step-0*(\d+)", pods[0].text) == stopped, "no step is lost, or made again"


@pytest.mark.pull
def test_a_job_whose_pods_are_told_to_go_one_after_the_other_ends_with_75_on_all(node: Node, rules: Rules) -> None:
    pods = start_pods(node, rules, 0, 1)
    rules.wait_for(UNDER_WAY, pods[0])
    tell_to_go(rules, pods[1])
    pods[0].wait_for("waiting for nodes again")
    pods[0].signal(signal.SIGTERM)
    assert end_all(pods) == [75, 75], pods[0].text + pods[1].text


@pytest.mark.pull
def test_ctrl_c_in_one_pod_ends_the_whole_job_with_79(node: Node, rules: Rules) -> None:
    pods = start_pods(node, rules, 0, 1)
    rules.wait_for(UNDER_WAY, pods[0])
    tell_to_go(rules, pods[1], signal.SIGINT)
    assert end_all(pods) == [79, 79], pods[0].text + pods[1].text
