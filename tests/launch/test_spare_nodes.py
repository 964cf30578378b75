"""A job with a spare node: a whole node is lost, and the spare one takes its place."""

import signal
from collections.abc import Callable
from pathlib import Path

from launchers import Launcher
from stand_in_rules import Rule, Rules
from test_memory import IN_MEMORY, JOB, process_of, steps_of, wait_for_memory
from test_warm import standby_of
from waiting import PATIENCE, wait_until

from slipway.launch.run_directory.directory import RunDirectory
from slipway.process.tree import lives

Node = Callable[..., Launcher]


def test_a_spare_node_takes_the_place_of_a_node_that_is_killed_and_the_result_is_the_same(
    node: Node, start: Callable[..., Launcher], rules: Rules, tmp_path: Path
) -> None:
    words = ("run", *JOB, "--steps", "60", "--memory-every", "1", "--runs")
    held = Rule("hold", step=31, rank=1)
    told = {**rules.variables(held, torch=True), "OMP_NUM_THREADS": "1"}
    jobs = [node(rank, "2+1", *words, f"disk-{rank}", **told) for rank in (0, 1, 2)]
    rules.wait_for(held, jobs[1])
    wait_for_memory(jobs[0], 30)
    [run] = tmp_path.glob("disk-0/*")
    wait_until(
        lambda: [spare.node for spare in RunDirectory(run).node(0).spares or ()] == [2], "the spare node's record"
    )
    assert standby_of(jobs[2])
    rank = process_of(tmp_path / "disk-1", 1)
    jobs[1].signal(signal.SIGKILL)
    wait_until(lambda: not lives(rank), "the end of the rank on the node that is killed")
    rules.let_go(held)
    assert [jobs[rank].end(2 * PATIENCE) for rank in (0, 2)] == [0, 0], jobs[0].text + jobs[2].text
    assert "takes place 1 of 2 in the job" in jobs[0].text
    assert IN_MEMORY.findall(jobs[0].text) == ["30"], "node 0 has it in memory, and sends it"
    assert sorted(rules.started) == ["1-0", "1-1"], "the workers of the second attempt were forked from warm processes"
    assert steps_of(tmp_path / "disk-0") == list(range(1, 61))
    alone = start(*words, "alone", NPROC_PER_NODE="2", OMP_NUM_THREADS="1")
    assert alone.end(2 * PATIENCE) == 0, alone.text
    assert weights(tmp_path / "disk-0") == weights(tmp_path / "disk-2") == weights(tmp_path / "alone")


def weights(runs: Path) -> dict[str, bytes]:
    """The files of a run's last weights."""
    [last] = runs.glob("*/snapshots/step-00000060")
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


SHORT = ("linear", "--steps", "9", "--log-every", "1", "--save-every", "2")


def wait_for_spare(job: Launcher, runs: Path) -> None:
    """Return once node 0 has written down that node 2 is a spare node."""
    wait_until(
        lambda: [spare.node for run in runs.glob("*") for spare in RunDirectory(run).node(0).spares or ()] == [2],
        lambda: f"the spare node's record:\n{job.text}",
    )


def test_without_torch_a_killed_node_0_is_replaced_and_a_new_one_waits(
    node: Node, rules: Rules, tmp_path: Path
) -> None:
    held, later = Rule("hold", rank=1), Rule("hold", step=7, rank=1, attempt=2)
    told = rules.variables(held, later)
    jobs = [node(rank, "2+1", *SHORT, "--runs", f"disk-{rank}", **told) for rank in (0, 1, 2)]
    rules.wait_for(held, jobs[1])
    wait_for_spare(jobs[0], tmp_path / "disk-0")
    jobs[0].signal(signal.SIGKILL)
    rules.let_go(held)
    rules.wait_for(later, jobs[1])
    jobs[0] = node(0, "2+1", *SHORT, "--runs", "another-disk", **told)
    jobs[2].wait_for("waits as a spare node")
    rules.let_go(later)
    assert [job.end() for job in jobs] == [0, 0, 0], jobs[0].text + jobs[2].text
    assert "takes place 0 of 2 in the job" in jobs[2].text
    assert "this node was a spare one until the end" in jobs[0].text
    assert "results are in" in jobs[2].text, "it speaks for all"
    assert "results are in" not in jobs[0].text + jobs[1].text


def test_a_node_0_that_is_asked_to_stop_leaves_its_place_to_a_spare_node(
    node: Node, rules: Rules, tmp_path: Path
) -> None:
    held = Rule("hold", rank=1)
    told = rules.variables(held)
    jobs = [node(rank, "2+1", *SHORT, **told) for rank in (0, 1, 2)]
    rules.wait_for(held, jobs[1])
    wait_for_spare(jobs[0], tmp_path / "runs")
    jobs[0].signal(signal.SIGTERM)
    jobs[0].wait_for("SIGTERM received")
    rules.let_go(held)
    assert [job.end() for job in jobs] == [75, 0, 0], jobs[0].text + jobs[2].text
    [run] = (tmp_path / "runs").glob("*")
    outcome = RunDirectory(run).outcome_json
    assert (outcome["word"], outcome["code"]) == ("finished", 0), outcome
