"""Several launchers on one machine, each a node of its own: they find each other, agree, and end with one verdict."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Node = Callable[..., Launcher]


@pytest.mark.core
def test_two_launchers_train_linear_together_and_both_finish(node: Node, tmp_path: Path) -> None:
    jobs = [node(rank, 2, "linear", "--epochs", "1") for rank in (1, 0)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "2 nodes × 1 CPU process = 2 processes" in jobs[0].text
    assert len(list(tmp_path.glob("runs/linear-*"))) == 1
    assert "[1:1] " in jobs[0].text, "each node's local rank 0 reports its own loss"


@pytest.mark.pull
def test_nodes_with_own_folders_need_no_shared_file_system(node: Node, rules: Rules, tmp_path: Path) -> None:
    words = ("linear", "--steps", "3", "--runs")
    jobs = [node(rank, 2, *words, f"disk-{rank}", **rules.variables()) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    names = [[path.name for path in (tmp_path / f"disk-{rank}").glob("linear-*")] for rank in (0, 1)]
    assert names[0] == names[1], "node 0 tells the run's name"
    outcomes = [json.loads(next((tmp_path / f"disk-{rank}").glob("*/outcome.json")).read_text()) for rank in (0, 1)]
    for outcome in outcomes:  # each launcher has its own clock
        assert outcome.pop("ledger")["seconds"]
        outcome["attempts"] = [(tried["number"], tried["outcome"]) for tried in outcome["attempts"]]
    assert outcomes[0] == outcomes[1]


@pytest.mark.core
def test_a_missing_node_is_named_and_all_that_came_end_with_76(node: Node) -> None:
    jobs = [node(rank, 4, "linear", SLIPWAY_RENDEZVOUS_TIMEOUT="20") for rank in (0, 1, 3)]
    assert [job.end() for job in jobs] == [76, 76, 76], jobs[0].text
    for job in jobs:
        assert "waiting for nodes: 3 of 4" in job.text
        assert "missing node rank 2" in job.text
        assert "torchrun" not in job.text


@pytest.mark.core
def test_different_arguments_end_with_78_and_a_table_on_both(node: Node, tmp_path: Path) -> None:
    jobs = [node(rank, 2, "linear", "--epochs", str(rank + 1)) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [78, 78], jobs[0].text
    for job in jobs:
        assert "differ in arguments" in job.text
        assert "--epochs 1" in job.text
        assert "--epochs 2" in job.text
    assert not list(tmp_path.glob("runs/*/node-*/logs")), "nothing was started"


@pytest.mark.pull
@pytest.mark.needs("mounts")
def test_workers_go_where_the_launcher_found_node_0_whatever_its_name_leads_to_then(
    node: Node, rules: Rules, tmp_path: Path
) -> None:
    held, jobs = Rule("hold", step=0, phase="setup", rank=1), []
    for rank in (0, 1):
        names = tmp_path / f"hosts-{rank}"
        names.write_text("127.0.0.1 localhost node-zero\n")
        own_names = ("unshare", "--mount", "sh", "-c", f'mount --bind {names} /etc/hosts && exec "$@"', "sh")
        more = rules.variables(held)
        jobs.append(node(rank, 2, "linear", "--steps", "3", before=own_names, MASTER_ADDR="node-zero", **more))
    rules.wait_for(held, jobs[1])
    names.write_text("127.0.0.1 localhost\n192.0.2.1 node-zero\n")  # RFC 5737: nobody has this address
    rules.let_go(held)
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text


@pytest.mark.pull
def test_uneven_nodes_run_with_the_smallest_count_where_that_is_allowed(node: Node, rules: Rules) -> None:
    words = ("linear", "--steps", "3", "--allow-uneven")
    jobs = [node(rank, 2, *words, **rules.variables(), NPROC_PER_NODE=str(rank + 1)) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "[1:1]" in jobs[1].text
    assert "[1:2]" not in jobs[1].text


@pytest.mark.pull
def test_a_stop_on_one_node_stops_the_job_on_all_with_a_snapshot(node: Node, rules: Rules, tmp_path: Path) -> None:
    held, words = Rule("hold"), ("linear", "--steps", "9", "--log-every", "1")
    jobs = [node(rank, 2, *words, "--runs", f"disk-{rank}", **rules.variables(held)) for rank in (0, 1)]
    rules.wait_for(held, jobs[0])
    jobs[1].signal(signal.SIGTERM)
    for job in jobs:
        job.wait_for("stopping, at most")
    rules.let_go(held)
    assert [job.end() for job in jobs] == [75, 75], jobs[0].text + jobs[1].text
    assert [path.name for path in tmp_path.glob("disk-1/*/snapshots/step-*")] == ["step-00000005"]
    disks, more = ("an-empty-one", "disk-1"), rules.variables()  # all are started again, and node 0 has lost its disk
    jobs = [node(rank, 2, *words, "--runs", disks[rank], "--resume", "auto", **more) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "step-00000005\n" in jobs[0].text.partition("resuming from")[2], jobs[0].text
    runs = [[path.name for path in (tmp_path / disk).iterdir()] for disk in disks]
    assert runs[0] == runs[1], "one run, which went on"
