"""Node 0 is lost in a job with spare nodes: one of these leads in its place, and a new node 0 joins it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stage import Launcher, make_info, make_outcome
from waiting import PATIENCE, wait_until

from slipway.launch.rendezvous.messages import AttemptStart
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.verdict.restarts import Ending

AGAIN = lambda verdict, leaving: Ending(verdict, 0.0, leaving=leaving)  # noqa: E731


class Job:
    """The rendezvous of a job of two nodes and a spare one, each driven by the test."""

    def __init__(self, launcher: Callable[..., Launcher]) -> None:
        self._launcher = launcher
        self.rendezvous: dict[int, Rendezvous] = {}
        self.lines: dict[int, list[str]] = {}

    def open(self, *ranks: int) -> None:
        for rank in ranks:
            one = self._launcher(rank, 2, more={"spares": 1, "window": 60.0})
            self.rendezvous[rank], self.lines[rank] = one.open().__enter__(), one.lines

    def close(self, *ranks: int) -> None:
        for rank in ranks:
            self.rendezvous.pop(rank).__exit__()

    def join(self, infos: dict[int, dict[str, Any]]) -> dict[int, AttemptStart]:
        """Let the launchers of these ranks join, with changes to their node infos; what each was told."""
        starts: dict[int, AttemptStart] = {}

        def run(rank: int) -> None:
            if start := self.rendezvous[rank].join(make_info(rank, 2, **infos[rank])):
                starts[rank] = start

        threads = [threading.Thread(target=run, args=(rank,)) for rank in infos]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert starts.keys() == infos.keys(), self.lines
        return starts


@pytest.fixture
def job(launcher: Callable[..., Launcher]) -> Iterator[Job]:
    """Nodes 0 and 1 run the first attempt, and node 2 is a spare node that both know of."""
    made = Job(launcher)
    made.open(0, 1, 2)
    starts = made.join({0: {}, 1: {}, 2: {}})
    assert {rank: (start.group_rank, start.leader) for rank, start in starts.items()} == {
        0: (0, 0),
        1: (1, 0),
        2: (-1, 0),
    }
    others = [made.rendezvous[rank]._client for rank in (1, 2)]
    wait_until(lambda: all(client._successors for client in others), "the name of the successor")
    yield made
    made.close(*made.rendezvous)


def lose_node_0(job: Job) -> dict[int, dict[str, Any]]:
    """Close node 0, let the others end the attempt, and return what they know of the job."""
    job.close(0)
    for rank in (1, 2):
        wait_until(lambda rank=rank: job.rendezvous[rank].news is not None, "news")  # type: ignore[misc]
    ended = [job.rendezvous[1].report(make_outcome(1, "peer"), AGAIN), job.rendezvous[2].watch(AGAIN, lambda: False)]
    assert [(ending.verdict.word, ending.verdict.first.node_rank) for ending in ended if ending] == [("lost", 0)] * 2
    stayed = {"attempt": 1, "tries": 1, "run": "linear-of-0", "snapshot": 40}
    return {1: stayed | {"place": 1}, 2: stayed | {"snapshot": None}}


def test_a_spare_node_leads_in_the_place_of_node_0_and_a_new_node_0_becomes_a_spare_node(job: Job) -> None:
    starts = job.join(lose_node_0(job))
    assert {rank: (start.attempt, start.group_rank, start.leader) for rank, start in starts.items()} == {
        1: (2, 1, 2),
        2: (2, 0, 2),
    }
    assert {(start.run, start.snapshot) for start in starts.values()} == {("linear-of-0", 40)}
    assert any("this node leads the job in its place" in line for line in job.lines[2]), job.lines
    job.open(0)
    late = job.join({0: {"run": "linear-of-later"}})[0]
    assert (late.attempt, late.group_rank, late.leader, late.run) == (2, -1, 2, "linear-of-0"), job.lines
    assert any(line.startswith("node 2 ") and "leads the job, which runs already" in line for line in job.lines[0])


def test_a_new_node_0_that_starts_at_once_is_in_the_same_attempt_as_the_others(job: Job) -> None:
    """Whether they find it or its successor first."""
    infos = lose_node_0(job)
    job.open(0)
    starts = job.join({0: {"run": "linear-of-later"}, **infos})
    assert len({(start.attempt, start.run, start.leader) for start in starts.values()}) == 1, job.lines
    assert sorted(start.group_rank for start in starts.values()) == [-1, 0, 1]
