"""torch's store of another job, at the address where a node expects its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from launchers import PYTHON
from ports import take_port

pytestmark = pytest.mark.any_torch

AGENT = ("-m", "slipway.process.agent")
# The same, and it says when it has seen the mark that node 0 leaves in the store.
SAYS_MARK = """
import sys
from torch.distributed import PrefixStore
from slipway.process.agent import main
wait = PrefixStore.wait
def and_say(store, keys, *more):
    wait(store, keys, *more)
    print("saw", keys, flush=True)
PrefixStore.wait = and_say
sys.exit(main(sys.argv[1:]))
"""


def start_agent(
    rank: int, port: int, name: str, folder: Path, nodes: int = 2, program: tuple[str, ...] = AGENT
) -> subprocess.Popen[str]:
    """torchrun in the agent, as a launcher starts it, for one of the nodes."""
    folder.mkdir()
    meeting = (
        f"--nnodes={nodes}",
        f"--node-rank={rank}",
        "--nproc-per-node=1",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    )
    words = (
        PYTHON,
        *program,
        str(os.getpid()),
        "2",
        "1,2",
        str(folder),
        "0,0,2",
        "",
        "",
        *meeting,
    )
    words += (f"--rdzv-id={name}", "--max-restarts=0", "--no-python", "--", "true")
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("names", [("one-1", "other-1"), ("one-1", "one-2"), ("one-1", "one-1")])
def test_a_node_at_the_store_of_another_job_or_attempt_ends_within_seconds_and_says_so(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    port = take_port()
    agents = [start_agent(rank, port, name, tmp_path / str(rank)) for rank, name in enumerate(names)]
    try:
        said = agents[1].communicate(timeout=120)[0]
        if names[0] == names[1]:
            assert [agent.wait(60) for agent in agents] == [0, 0], said
            return
        assert agents[1].returncode == 1, said
        assert re.search(rf"TimeoutError: torch's store at 127.0.0.1, port {port} is not that of this job", said), said
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def test_a_node_that_is_slow_to_come_is_waited_for(tmp_path: Path) -> None:
    """The mark is there for those that came, so that none of them takes the store for another job's meanwhile."""
    port = take_port()
    agents = [start_agent(0, port, "one-1", tmp_path / "0", nodes=3)]
    agents.append(start_agent(1, port, "one-1", tmp_path / "1", nodes=3, program=("-c", SAYS_MARK)))
    try:
        assert agents[1].stdout
        said: list[str] = []
        while not said or (said[-1] and "saw ['slipway']" not in said[-1]):
            said.append(agents[1].stdout.readline())
        assert said[-1], said
        agents.append(start_agent(2, port, "one-1", tmp_path / "2", nodes=3))
        assert [agent.wait(90) for agent in agents] == [0, 0, 0]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
