"""Launchers as processes: what happens when one is killed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stub_processes import Process


@pytest.fixture
def launchers(port: int, tmp_path: Path) -> Iterator[Any]:
    """Starts stub launchers of one job on loopback."""
    with ExitStack() as stack:

        def start(node_rank: int, nodes: int, **options: Any) -> Process:
            given = {"address": "127.0.0.1", "port": port, "folder": str(tmp_path)} | options
            return stack.enter_context(Process(node_rank=node_rank, nodes=nodes, **given))

        yield start


def test_processes_agree_and_finish(launchers: Any) -> None:
    processes = [launchers(rank, 3) for rank in range(3)]
    assert [process.finish() for process in processes] == [0, 0, 0]
    assert all(process.log.endswith("finished on 3 nodes\n") for process in processes)


def test_a_failure_on_one_node_ends_all_with_the_same_block(launchers: Any) -> None:
    processes = [launchers(rank, 3, seconds=30, fail="") for rank in range(2)]
    processes.append(launchers(2, 3, seconds=0.5, fail="exit code 3"))
    assert [process.finish() for process in processes] == [1, 1, 1]
    blocks = {process.log.partition("the workload failed")[2] for process in processes}
    assert len(blocks) == 1
    assert ": node 2 (host2): exit code 3\n" in blocks.pop()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_launcher_is_named_by_the_survivors(launchers: Any, victim: int) -> None:
    processes = [launchers(rank, 3, seconds=30) for rank in range(3)]
    for process in processes:
        process.wait_for_start()
    processes[victim].kill()
    survivors = [process for rank, process in enumerate(processes) if rank != victim]
    assert [process.finish(10) for process in survivors] == [76, 76]
    assert all(f"a node was lost: node {victim} (host{victim})" in process.log for process in survivors)


def test_a_node_0_killed_while_waiting_may_come_again(launchers: Any) -> None:
    launchers(0, 3).kill()
    others = [launchers(rank, 3) for rank in (1, 2)]
    again = launchers(0, 3)
    assert [process.finish() for process in (again, *others)] == [0, 0, 0]
