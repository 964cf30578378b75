"""One launcher per process, as `srun -n` and `mpirun` start them: no torchrun inside, the same endings."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import HANGS_A_WHILE, Launcher
from ports import take_ports
from stand_in_rules import Rule, Rules

from slipway.launch.run_directory.directory import RunDirectory

Process = Callable[..., Launcher]


@pytest.fixture
def process(start: Callable[..., Launcher]) -> Process:
    """Start process `rank` of two on one node, with the variables of the scheduler named."""
    port = str(take_ports(2))

    def launch(rank: int, *words: str, scheduler: str = "plain", **more: str) -> Launcher:
        mine = {
            "plain": {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            "mpirun": {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "PMIX_NAMESPACE": "prterun-host-4711@1",
            },
        }[scheduler]
        return start(*words, MASTER_PORT=port, MASTER_ADDR="127.0.0.1", **mine, **more)

    return launch


@pytest.mark.core
@pytest.mark.parametrize("scheduler", ["plain", "mpirun"])
def test_each_launcher_runs_its_one_process_and_says_so(
    process: Process, rules: Rules, tmp_path: Path, scheduler: str
) -> None:
    words = ("linear", "--steps", "5", *(("--run-dir", "mine") if scheduler == "plain" else ()))
    jobs = [process(rank, *words, scheduler=scheduler, **rules.variables()) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "1 node × 2 CPU processes = 2 processes" in jobs[0].text
    assert "one launcher per process" in jobs[0].text
    folder = tmp_path / "mine" if scheduler == "plain" else next(tmp_path.glob("runs/linear-prterun*"))
    assert {log.name for log in folder.glob("node-0/logs/rank-*.log")} == {"rank-0.log", "rank-1.log"}
    assert not (folder / "node-0" / "logs" / "torchrun.log").exists()
    assert [f"finished on rank {rank}" in job.text for rank, job in enumerate(jobs)] == [True, True]


@pytest.mark.pull
def test_a_process_that_starts_late_belongs_to_the_same_attempt_and_rank_0_alone_writes_the_verdict(
    process: Process, rules: Rules, tmp_path: Path
) -> None:
    held = Rule("hold", step=0, phase="setup")
    words, more = ("linear", "--steps", "5"), rules.variables(held)
    first = process(0, *words, scheduler="mpirun", **more)
    rules.wait_for(held, first)
    [folder] = tmp_path.glob("runs/linear-prterun*")
    late = process(1, *words, scheduler="mpirun", **more)
    late.wait_for("run directory")
    rules.let_go(held)
    assert [first.end(), late.end()] == [0, 0], first.text + late.text
    assert "attempt 2" not in late.text
    assert json.loads((folder / "run.json").read_text())["attempt"] == 1
    assert RunDirectory(folder).outcome_json["word"] == "finished"
    assert RunDirectory(folder).outcome_json["first"]["node_rank"] == 0


@pytest.mark.pull
def test_a_stop_saves_and_ends_with_75(process: Process, rules: Rules, tmp_path: Path) -> None:
    held = Rule("hold")
    words, more = ("gpt", "--steps", "100000", "--run-dir", "mine"), rules.variables(held)
    jobs = [process(rank, *words, **more) for rank in (0, 1)]
    rules.wait_for(held, jobs[0])
    for job in jobs:
        job.signal(signal.SIGTERM)
        job.wait_for("SIGTERM received")
    rules.let_go(held)
    assert [job.end() for job in jobs] == [75, 75], jobs[0].text + jobs[1].text
    assert [path.name for path in tmp_path.glob("mine/snapshots/step-*")] == ["step-00000005"]


def test_a_script_that_fails_is_told_from_the_process_that_lost_it(process: Process, script: Path) -> None:
    jobs = [process(rank, "own.py", "--then", "exit-3", scheduler="mpirun") for rank in (0, 1)]
    codes = [job.end() for job in jobs]
    assert codes[1] == 1, jobs[1].text
    assert codes[0] != 0, jobs[0].text
    assert any("rank 1" in line for line in jobs[1].closing)
    assert any("exit code 3" in line for line in jobs[1].closing)


def ask(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "slipway", *words]
    asked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def test_a_hang_is_told_by_the_launcher_of_process_0_and_each_answers_where_its_process_stands(
    process: Process, tmp_path: Path
) -> None:
    (tmp_path / "a_while.py").write_text(HANGS_A_WHILE)
    os.mkfifo(tmp_path / "go")
    words = ("run", "--run-dir", "mine", "--hang-seconds", "6", "a_while.py")
    jobs = [process(rank, *words) for rank in (0, 1)]
    hang = "rank 1 (node 0) has not reached all_reduce #2; rank 0 has been waiting since"
    jobs[0].wait_for(f"slipway: hang: {hang}")
    jobs[0].wait_for("the job is not stopped")
    assert "; rank 1 is at a_while.py:7 <module>()" in jobs[0].text
    shown = ask(tmp_path, "stacks", "mine")
    assert "rank 0 (node 0) is at a_while.py:8 <module>(); waits in all_reduce #2" in shown
    assert "rank 1 (node 0) is at a_while.py:7 <module>()" in shown
    shown = ask(tmp_path, "stacks", "mine", "--rank", "1")
    assert "rank 1 (node 0) is at a_while.py:7 <module>()" in shown
    assert "done: all_reduce #1" in shown
    assert "rank 0" not in shown
    shown = ask(tmp_path, "status", "mine")
    assert f"  hang        {hang}" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-2:]] == [["0", "1"], ["1", "1"]]
    (tmp_path / "go").write_text("")
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "progress has resumed" in jobs[0].text
    assert "hang" not in jobs[1].text


def test_a_hang_ends_every_launcher_where_that_is_asked_for(process: Process, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(HANGS_A_WHILE)
    os.mkfifo(tmp_path / "go")
    words = ("run", "--run-dir", "mine", "--hang-seconds", "6", "--on-hang", "end", "stuck.py")
    jobs = [process(rank, *words) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [76, 76], jobs[0].text + jobs[1].text
    outcome = json.loads((tmp_path / "mine" / "outcome.json").read_text())
    assert outcome["first"]["evidence"].startswith("hang: rank 1 (node 0) has not reached all_reduce #2")
    assert outcome["first"]["stacks"][0] == "  rank 1 (node 0) is at stuck.py:7 <module>()"
    assert "hang: rank 1 (node 0) has not reached all_reduce #2" in jobs[1].text
