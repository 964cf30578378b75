"""`--launcher spawn`: the command that is started, how many processes it counts, and where it cannot work."""

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway, make_devices, make_sources, resolve

from slipway.launch.attempt.child import parent_of
from slipway.launch.attempt.ending import Facts, choose_outcome
from slipway.launch.resolve.catalog import WORKLOADS, spawned
from slipway.launch.resolve.plan import make_plan
from slipway.launch.run_directory.node_directory import NodeDirectory


def made(slipway: Slipway, *words: str, **environ: str) -> dict[str, Any]:
    answer = slipway("plan", "linear", "--json", *words, **environ)
    assert answer.code == 0, answer.err
    plan: dict[str, Any] = json.loads(answer.out)
    return plan


def test_one_process_is_started_that_knows_where_the_others_meet(slipway: Slipway) -> None:
    words = ["--launcher", "spawn", "--world-size", "3", "--lr", "0.2"]
    started = made(slipway, *words, "--master-port", "4000", MASTER_ADDR="localhost")["torchrun"]
    assert started["argv"][:2] == ["setpriv", "--pdeathsig=KILL"]
    assert started["argv"][-8:] == ["slipway.train.worker.spawn", "linear", *words]
    facts = {"MASTER_ADDR": "localhost", "MASTER_PORT": "4000", "WORLD_SIZE": "3"}
    assert {name: started["env"].get(name) for name in facts} == facts
    assert "RANK" not in started["env"]


def test_the_plan_for_people_names_it(slipway: Slipway) -> None:
    lines = slipway("plan", "linear", "--launcher=spawn").out.splitlines()
    assert lines[-3].startswith("one process, which spawns the workers (")
    assert "WORLD_SIZE=2" in lines[-2]
    assert lines[-1].endswith("-m slipway.train.worker.spawn linear --launcher=spawn")


@pytest.mark.parametrize(
    ("words", "environ", "value", "source"),
    [
        ([], {}, "2", "default"),
        ([], {"NPROC_PER_NODE": "4"}, "4", "environment (NPROC_PER_NODE)"),
        (["--nproc-per-node", "4"], {}, "4", "command line (--nproc-per-node)"),
        (["--world-size", "3"], {"NPROC_PER_NODE": "4"}, "3", "command line (--world-size)"),
        (["--config", "own.yaml"], {"NPROC_PER_NODE": "4"}, "5", "own.yaml line 2 (--world-size)"),
    ],
)
def test_the_number_of_processes_is_told_with_its_source(
    slipway: Slipway, words: list[str], environ: dict[str, str], value: str, source: str
) -> None:
    Path("own.yaml").write_text("launcher: spawn\nworld-size: 5\n")
    plan = made(slipway, "--launcher", "spawn", *words, **environ)
    processes = int(plan["torchrun"]["env"]["WORLD_SIZE"])
    assert plan["topology"]["processes_per_node"] == processes
    told = plan["values"]["NPROC_PER_NODE"]
    assert told["source"] == source
    assert (told["value"], str(processes)) in {(value, value), ("auto", value)}


@pytest.mark.parametrize(
    ("words", "environ", "code", "says"),
    [
        (["--world-size", "2"], {}, 78, "type --nproc-per-node 2"),
        (["--launcher", "spawn", "--world-size", "2", "--nproc-per-node", "2"], {}, 2, "type one of them"),
        (["--launcher", "spawn", "--nnodes", "2", "--master-addr", "n0"], {}, 78, "on one machine only"),
        (["--launcher", "spawn"], {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "n0"}, 78, "from the environment"),
        (
            ["--launcher", "spawn", "--run-dir", "x"],
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
            78,
            "one launcher per process already",
        ),
    ],
)
def test_what_cannot_be_spawned_is_refused(
    slipway: Slipway, words: list[str], environ: dict[str, str], code: int, says: str
) -> None:
    answer = slipway("plan", "linear", *words, **environ)
    assert answer.code == code, answer.out
    assert says in " ".join(answer.err.split())


def test_other_workloads_do_not_know_it(slipway: Slipway) -> None:
    assert slipway("plan", "gpt", "--launcher", "spawn").code == 2


def test_its_end_is_told_by_its_name(tmp_path: Path) -> None:
    plan = make_plan(resolve({}, devices=make_devices()), spawned(WORKLOADS["linear"]), [], make_sources({}))
    facts = Facts(0, "n0", True, plan.topology.ranks, status=-9, started=True, parent=parent_of(plan))
    outcome = choose_outcome(facts, NodeDirectory(tmp_path), 1.0)
    assert outcome.evidence == "the process that spawns the workers was ended by SIGKILL; its workers were ended, too"
