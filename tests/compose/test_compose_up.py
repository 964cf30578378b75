"""`docker compose up` for real, on the CPU: training, deaths, restarts, stops."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from compose_projects import CPU, LINEAR, TWO_NODES, Project, docker
from next_lines import next_commands


def run_directories(said: str) -> set[str]:
    """The folders that a container's starts trained in."""
    return set(re.findall(r": run directory ([^\s,]+)", said))


def test_the_example_as_it_is_takes_the_gpus_of_a_machine_that_has_some(project: Callable[..., Project]) -> None:
    made = project(WORKLOAD="linear --steps 20")
    if "nvidia" in docker("info", "--format", "{{json .Runtimes}}"):
        assert "GPU" in made("up").partition("processes")[0]
    else:
        assert "could not select device driver" in made("up", code=1)


def test_a_killed_training_goes_on_with_its_run_from_a_snapshot(trained: Project) -> None:
    said = trained.logs("train")
    assert trained.container("train")["RestartCount"] == 1
    assert said.count(": run directory ") == 2
    assert len(run_directories(said)) == 1
    assert re.search(r"resuming from /checkpoints/gpt-[\d-]+/snapshots/step-0*[1-9]", said)


def test_the_results_can_be_copied_out(trained: Project) -> None:
    run = trained.copy_out("train")
    assert json.loads((run / "outcome.json").read_text())["word"] == "stopped"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(5, len(steps) * 5 + 1, 5))


def test_a_stopped_training_stays_stopped_and_goes_on_when_asked_to(project: Callable[..., Project]) -> None:
    made = project(COMPOSE_FILE=CPU, WORKLOAD=LINEAR)
    made("up", "--detach")
    made.wait_for_text("train", "step 50/")
    made("stop")
    container = made.wait_for_end("train")
    assert (container["State"]["ExitCode"], container["RestartCount"]) == (75, 0)
    assert "snapshot saved" in made.logs("train")
    made("down")  # the container and what it said are gone, the volumes are not
    made("up", "--detach")
    made.wait_for_text("train", "resuming from /checkpoints/linear-")


@pytest.mark.core
def test_up_after_the_end_says_that_it_is_finished(finished: Project) -> None:
    assert "finished on 1 node: 20 steps" in finished.logs("train")
    assert "is finished; there is nothing to resume" in finished("up")
    assert finished.container("train")["State"]["ExitCode"] == 0


def test_each_command_that_a_finished_training_tells_can_be_pasted(finished: Project) -> None:
    report, sample, longer = next_commands(finished.logs("train").splitlines())
    assert "report.html" in finished.type_in(report)
    assert "def " in finished.type_in(sample)
    assert "finished on 1 node: 40 steps" in finished.type_in(longer)


def test_a_wrong_setting_is_said_four_times(project: Callable[..., Project]) -> None:
    made = project(COMPOSE_FILE=CPU, WORKLOAD="gtp --steps 5")
    made("up", "--detach")
    container = made.wait_for_end("train")
    assert (container["State"]["ExitCode"], container["RestartCount"]) == (78, 3)
    assert made.logs("train").count("Did you mean gpt?") == 4


def test_two_nodes_train_together_and_go_on_after_one_died(project: Callable[..., Project]) -> None:
    made = project(COMPOSE_FILE=TWO_NODES, WORKLOAD=LINEAR, NPROC_PER_NODE="1", RANK="7")
    made("up", "--detach")
    made.wait_for_snapshot("node0")
    made.kill("node1")
    made.wait_for_steps_after_resuming("node0")  # from what it had in memory, or from a snapshot
    made("stop")
    stopped_at = []
    for restarts, node in enumerate(("node0", "node1")):  # node 0 waited for node 1, which the engine started again
        container, said = made.wait_for_end(node), made.logs(node)
        assert (container["State"]["ExitCode"], container["RestartCount"]) == (75, restarts), said
        assert "2 nodes × 1 CPU process = 2 processes" in said
        assert len(run_directories(said)) == 1
        stopped_at += re.findall(r"stopped at step \d+ of 1000000, snapshot saved", said)
    assert "a node was lost: node 1 (node1)" in made.logs("node0")
    assert len(stopped_at) == 2, "both say where"
    assert len(set(stopped_at)) == 1, "at the same step"
    going_on, *others = next_commands(made.logs("node0").splitlines())
    assert going_on.endswith(f"--resume auto {LINEAR.partition(' ')[2]} --nproc-per-node 1 --standalone"), (
        "as long as it was"
    )
    said = [made.type_in(command) for command in others]
    assert "report.html" in said[0]
    assert "finished on 1 node" in said[1], "the settings count two nodes"
