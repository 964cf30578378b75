"""The gallery of own loops under real launchers: killed at moments that a seed chooses, each ends with the bits of an undisturbed run.

A process of the loop dies by SIGKILL within some calls of functions after some steps (own_loops.py), once per attempt. KILLS=N sets
how often; the test prints how many attempts there were.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import own_loops
import pytest
from own_runs import assert_equal, metrics, results
from ports import take_ports
from waiting import PATIENCE

KILLS = {1: int(os.environ.get("KILLS", "10")), 2: int(os.environ.get("KILLS", "3"))}  # by the number of nodes
PROCESSES = {"hybrid": 4}  # of those that need more than two


def start(folder: Path, loop: str, kills: int, seed: int, nodes: int) -> list[subprocess.Popen[bytes]]:
    """The launchers of a job, each with a disk of its own, whose processes run a loop."""
    port, processes = take_ports(2), PROCESSES.get(loop, 2)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    launchers = []
    for node in range(nodes):
        place = ["--nnodes", nodes, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port]
        words = ["run", *(place if nodes > 1 else []), "--nproc-per-node", processes // nodes, "--max-restarts", 30]
        words += ["--run-dir", folder / f"node-{node}", own_loops.__file__, loop, folder / "found", kills, seed]
        (folder / f"node-{node}").parent.mkdir(parents=True, exist_ok=True)
        with (folder / f"node-{node}.log").open("w") as log:
            launchers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "slipway", *map(str, words)],
                    cwd=folder,
                    env={**kept, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return launchers


def run(folder: Path, loop: str, kills: int = 0, seed: int = 0, nodes: int = 1) -> str:
    """A job to its good end. Returns what it printed."""
    folder.mkdir()
    launchers = start(folder, loop, kills, seed, nodes)
    for launcher in launchers:
        launcher.wait(10 * PATIENCE)
    said = "".join((folder / f"node-{node}.log").read_text() for node in range(nodes))
    assert [launcher.returncode for launcher in launchers] == [0] * nodes, said
    return said


def seen(folder: Path, rank: int) -> dict[str, set[str]]:
    """The number of each sample, by its place among all that a rank trained on: one, however often it was repeated."""
    found: dict[str, set[str]] = {}
    for line in Path(f"{folder / 'found'}-{rank}.seen").read_text().splitlines():
        place, number = line.split()
        found.setdefault(place, set()).add(number)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the undisturbed runs so far, by loop."""
    return {}


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
