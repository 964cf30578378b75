"""One launcher per process, as `srun -n` and `mpirun` start them: no torchrun inside, the same endings."""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher

from slipway.launch.run_directory.run import last_outcome

Process = Callable[..., Launcher]


@pytest.fixture
def process(start: Callable[..., Launcher]) -> Process:
    """Start process `rank` of two on one node, with the variables of the scheduler named."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])

    def launch(rank: int, *words: str, scheduler: str = "plain") -> Launcher:
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
        return start(*words, MASTER_PORT=port, MASTER_ADDR="127.0.0.1", **mine)

    return launch


@pytest.mark.core
@pytest.mark.parametrize("scheduler", ["plain", "mpirun"])
def test_each_launcher_runs_its_one_process_and_says_so(process: Process, tmp_path: Path, scheduler: str) -> None:
    words = ("linear", "--epochs", "1", *(("--run-dir", "mine") if scheduler == "plain" else ()))
    jobs = [process(rank, *words, scheduler=scheduler) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert "1 node × 2 CPU processes = 2 processes" in jobs[0].text
    assert "one launcher per process" in jobs[0].text
    folder = tmp_path / "mine" if scheduler == "plain" else next(tmp_path.glob("runs/linear-prterun*"))
    assert {log.name for log in folder.glob("node-0/logs/rank-*.log")} == {"rank-0.log", "rank-1.log"}
    assert not (folder / "node-0" / "logs" / "torchrun.log").exists()
    assert [f"finished on rank {rank}" in job.text for rank, job in enumerate(jobs)] == [True, True]


def test_a_process_that_starts_late_belongs_to_the_same_attempt_and_rank_0_alone_writes_the_verdict(
    process: Process, tmp_path: Path
) -> None:
    words = ("linear", "--epochs", "1")
    first = process(0, *words, scheduler="mpirun")
    first.wait_for("run directory")
    [folder] = tmp_path.glob("runs/linear-prterun*")
    until = time.monotonic() + 20
    while not (folder / "run.json").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    late = process(1, *words, scheduler="mpirun")
    assert [first.end(), late.end()] == [0, 0], first.text + late.text
    assert "attempt 2" not in late.text
    assert json.loads((folder / "run.json").read_text())["attempt"] == 1
    assert last_outcome(folder)["word"] == "finished"
    assert last_outcome(folder)["first"]["node_rank"] == 0


def test_a_stop_saves_and_ends_with_75(process: Process, tmp_path: Path) -> None:
    words = ("gpt", "--steps", "100000", "--log-every", "1", "--run-dir", "mine")
    jobs = [process(rank, *words) for rank in (0, 1)]
    jobs[0].wait_for("step 3/")
    for job in jobs:
        job.signal(signal.SIGTERM)
    assert [job.end() for job in jobs] == [75, 75], jobs[0].text + jobs[1].text
    assert len(list(tmp_path.glob("mine/snapshots/step-*"))) == 1


def test_a_script_that_fails_is_told_from_the_process_that_lost_it(process: Process, script: Path) -> None:
    jobs = [process(rank, "own.py", "--then", "exit-3", scheduler="mpirun") for rank in (0, 1)]
    codes = [job.end() for job in jobs]
    assert codes[1] == 1, jobs[1].text
    assert codes[0] != 0, jobs[0].text
    assert any("rank 1" in line for line in jobs[1].closing)
    assert any("exit code 3" in line for line in jobs[1].closing)


def test_without_a_name_that_all_can_know_the_run_directory_is_asked_for(process: Process) -> None:
    job = process(0, "linear")
    assert job.end() == 78, job.text
    assert "--run-dir" in job.text
