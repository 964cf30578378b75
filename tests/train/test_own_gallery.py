"""The gallery of own loops under real launchers: killed at moments that a seed chooses, each ends with the bits of an undisturbed run.

A process of the loop dies by SIGKILL within some calls of functions after some steps (own_loops.py), once per attempt. KILLS=N sets
how often; the test prints how many attempts there were. STOPS=N sets how many jobs are stopped within them by SIGTERM.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import own_loops
import pytest
import waiting
from own_runs import assert_equal, metrics, results
from ports import take_ports
from waiting import PATIENCE, wait_until

KILLS = {1: int(os.environ.get("KILLS", "10")), 2: int(os.environ.get("KILLS", "3"))}  # by the number of nodes
STOPS, IN_A_ROW = int(os.environ.get("STOPS", "2")), 5
STOPPED = ("by_steps", "by_boundary", "with_unused", "averaged")  # with more than 4 * IN_A_ROW steps
PROCESSES = {"hybrid": 4}  # of those that need more than two


def start(folder: Path, loop: str, kills: int | str, seed: int, nodes: int) -> list[subprocess.Popen[bytes]]:
    """The launchers of a job, each with a disk of its own, whose processes run a loop."""
    port, processes = take_ports(2), PROCESSES.get(loop, 2)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    launchers = []
    for node in range(nodes):
        place = ["--nnodes", nodes, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port]
        words = ["run", *(place if nodes > 1 else []), "--nproc-per-node", processes // nodes, "--max-restarts", 30]
        words += [
            "--resume",
            "auto",
            "--run-dir",
            folder / f"node-{node}",
            own_loops.__file__,
            loop,
            folder / "found",
            kills,
            seed,
        ]
        (folder / f"node-{node}").parent.mkdir(parents=True, exist_ok=True)
        with (folder / f"node-{node}.log").open("w") as log:
            launchers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "slipway", *map(str, words)],
                    cwd=folder,
                    env={
                        **kept,
                        "PYTHONWARNINGS": "ignore",
                        "OMP_NUM_THREADS": "1",
                        "PYTHONPATH": str(Path(waiting.__file__).parent),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return launchers


def run(folder: Path, loop: str, kills: int = 0, seed: int = 0, nodes: int = 1) -> str:
    """A job to its good end. Returns what it printed."""
    folder.mkdir(exist_ok=True)
    launchers = start(folder, loop, kills, seed, nodes)
    for launcher in launchers:
        launcher.wait(10 * PATIENCE)
    said = "".join((folder / f"node-{node}.log").read_text() for node in range(nodes))
    assert [launcher.returncode for launcher in launchers] == [0] * nodes, said
    return said


def stop_at(folder: Path, loop: str, step: int) -> int:
    """Send SIGTERM to the launcher of a job whose ranks are at that step. Returns the step at which the job was saved."""
    [launcher] = start(folder, loop, "stop", step, 1)
    log = folder / "node-0.log"
    wait_until(lambda: all(f"rank {rank} is at step {step}" in log.read_text() for rank in range(2)), log.read_text)
    launcher.terminate()
    assert launcher.wait(PATIENCE) == 75, log.read_text()
    assert "SIGABRT" not in log.read_text()
    assert "terminate called" not in log.read_text()
    outcomes = [json.loads((folder / f"node-0/node-0/outcome/rank-{rank}.json").read_text()) for rank in range(2)]
    [(word, stopped, snapshot)] = {(each["outcome"], each["step"], each["snapshot"]) for each in outcomes}
    assert (word, snapshot) == ("stopped", f"step-{stopped:08}")
    assert (folder / "node-0" / "snapshots" / snapshot).is_dir()
    return int(stopped)


def seen(folder: Path, rank: int) -> dict[str, set[str]]:
    """The number of each sample, by its place among all that a rank trained on: one, however often it was repeated."""
    found: dict[str, set[str]] = {}
    for line in Path(f"{folder / 'found'}-{rank}.seen").read_text().splitlines():
        place, number = line.split()
        found.setdefault(place, set()).add(number)
    return found


def assert_ended_alike(folder: Path, whole: Path, loop: str) -> None:
    """The job in `folder` ended with what the undisturbed one in `whole` did, and trained on the same samples."""
    for rank in range(PROCESSES.get(loop, 2)):
        found, expected = results(folder / "found", rank), results(whole / "found", rank)
        last, trained = found.pop("seen"), expected.pop("seen")
        assert last == trained[len(trained) - len(last) :]
        if rank and loop != "sharded":  # running statistics are rank 0's after a resume, until the next forward
            for state in (*found.values(), *expected.values()):
                for name in [name for name in state if "running_" in str(name)]:
                    del state[name]
        assert_equal(found, expected)
        assert seen(folder, rank) == seen(whole, rank), "each sample at its place, none lost"
    assert metrics(folder / "node-0") == metrics(whole / "node-0")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the undisturbed runs so far, by loop."""
    return {}


@pytest.mark.timeout(1800)  # up to a dozen starts in a row, each of which compiles its model
@pytest.mark.parametrize("nodes", KILLS)
@pytest.mark.parametrize("loop", own_loops.LOOPS)
def test_a_loop_killed_at_seeded_moments_ends_with_the_same_bits(
    undisturbed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, dice: random.Random, loop: str, nodes: int
) -> None:
    if loop not in undisturbed:
        undisturbed[loop] = tmp_path_factory.mktemp(loop) / "whole"
        run(undisturbed[loop], loop)
    folder, whole = tmp_path_factory.mktemp(loop) / "killed", undisturbed[loop]
    said = run(folder, loop, KILLS[nodes], dice.randrange(2**32), nodes)
    died = said.count("SIGKILL")
    print(f"{loop} on {nodes} nodes: {died} lines about SIGKILL, {said.count('resuming from')} resumed")
    assert "resuming from" in said, said
    assert_ended_alike(folder, whole, loop)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loop", own_loops.LOOPS)
def test_a_loop_is_proven_to_resume_exactly(tmp_path: Path, loop: str) -> None:
    words = [
        sys.executable,
        "-m",
        "slipway",
        "prove",
        "--nproc-per-node",
        str(PROCESSES.get(loop, 2)),
        own_loops.__file__,
        loop,
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(waiting.__file__).parent)}
    ended = subprocess.run(
        [*words, tmp_path / "found", "0", "0"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert "resumes exactly: " in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0


@pytest.mark.parametrize("chain", range(-(-STOPS // IN_A_ROW)))
def test_jobs_that_are_stopped_with_live_models_end_well_and_go_on_with_the_same_bits(
    undisturbed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, dice: random.Random, chain: int
) -> None:
    loop = STOPPED[chain % len(STOPPED)]
    if loop not in undisturbed:
        undisturbed[loop] = tmp_path_factory.mktemp(loop) / "whole"
        run(undisturbed[loop], loop)
    folder, whole = tmp_path_factory.mktemp(loop) / "stopped", undisturbed[loop]
    stopped = [0]
    for _ in range(min(IN_A_ROW, STOPS - chain * IN_A_ROW)):
        stopped.append(stop_at(folder, loop, stopped[-1] + dice.randrange(1, 3)))
        assert stopped[-1] > stopped[-2]
    print(f"{loop} was stopped at the steps {stopped[1:]}")
    said = run(folder, loop)
    assert f"step-{stopped[-1]:08}" in said, "it resumed from the last one"
    assert_ended_alike(folder, whole, loop)
