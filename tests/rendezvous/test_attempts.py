"""Attempt after attempt: who comes back, who is replaced, who leaves, and what the newcomers learn of the job."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from stage import Launcher, make_info, make_outcome
from waiting import PATIENCE, wait_until

from slipway.launch.rendezvous import coordinator
from slipway.launch.rendezvous.client import Client
from slipway.launch.rendezvous.link import Link
from slipway.launch.rendezvous.messages import AttemptStart, NodeInfo, Start
from slipway.launch.rendezvous.neighbour_check import NeighbourCheck
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.verdict.restarts import Ending
from slipway.protocol.errors import LaunchError

Make = Callable[..., Launcher]
Rule = Callable[[Any, tuple[int, ...]], Ending]
AGAIN: Rule = lambda verdict, leaving: Ending(verdict, 0.0, leaving=leaving)  # noqa: E731


class Launchers:
    """Rendezvous that the test itself drives, each call on all of them at once."""

    def __init__(self, launcher: Make, nodes: int, timeout: float = PATIENCE, **more: Any) -> None:
        self._launcher, self._nodes, self._timeout, self._more = launcher, nodes, timeout, more
        self._stacks: dict[int, ExitStack] = {}
        self.rendezvous: dict[int, Rendezvous] = {}
        self.lines: dict[int, list[str]] = {}

    def open(self, *ranks: int) -> None:
        for rank in ranks:
            one = self._launcher(rank, self._nodes, timeout=self._timeout, more=self._more)
            self._stacks[rank] = ExitStack()
            self.rendezvous[rank] = self._stacks[rank].enter_context(one.open())
            self.lines[rank] = one.lines

    def close(self, *ranks: int) -> None:
        """As if the launcher had been killed."""
        for rank in ranks:
            self._stacks.pop(rank).close()
            del self.rendezvous[rank]

    def all(self, act: Callable[[int, Rendezvous], Any], *ranks: int) -> dict[int, Any]:
        """What each of them returns or raises, by rank."""
        done: dict[int, Any] = {}

        def run(rank: int) -> None:
            try:
                done[rank] = act(rank, self.rendezvous[rank])
            except LaunchError as error:
                done[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks or self.rendezvous]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), self.lines
        return done

    def join(self, *ranks: int, **infos: Any) -> dict[int, Any]:
        """Join, with changes to the infos by `node0`, `node1` …; what each got."""

        def act(rank: int, rendezvous: Rendezvous) -> AttemptStart | None:
            return rendezvous.join(make_info(rank, self._nodes, **infos.get(f"node{rank}", {})))

        return self.all(act, *ranks)

    def begin_to_join(self, *ranks: int, **infos: Any) -> Callable[[], dict[int, Any]]:
        """The same meanwhile; the function that is returned waits for what each got."""
        got: dict[int, Any] = {}
        thread = threading.Thread(target=lambda: got.update(self.join(*ranks, **infos)), daemon=True)
        thread.start()

        def finish() -> dict[int, Any]:
            thread.join(PATIENCE)
            assert not thread.is_alive(), self.lines
            return got

        return finish

    def wait_for_nodes(self, count: int) -> None:
        """Until node 0 has admitted so many launchers, its own among them."""
        wait_until(lambda: len(self.rendezvous[0]._server.state.links) == count, lambda: f"{count} nodes: {self.lines}")

    def report(self, word: str) -> dict[int, Any]:
        return self.all(lambda rank, rendezvous: rendezvous.report(make_outcome(rank, word), AGAIN))

    def wait_for_news(self, rank: int) -> None:
        wait_until(lambda: self.rendezvous[rank].news is not None, "news")


@pytest.fixture
def launchers(launcher: Make) -> Iterator[Callable[..., Launchers]]:
    with ExitStack() as stack:

        @contextmanager
        def closing(made: Launchers) -> Iterator[Launchers]:
            try:
                yield made
            finally:
                made.close(*made.rendezvous)

        yield lambda nodes, **more: stack.enter_context(closing(Launchers(launcher, nodes, **more)))


def test_a_replaced_node_0_takes_the_job_over_from_those_that_stayed(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3)
    job.open(0, 1, 2)
    job.join()
    job.close(0)
    for rank in (1, 2):
        job.wait_for_news(rank)
    endings = job.report("peer")
    assert {(ending.verdict.word, ending.verdict.first.node_rank) for ending in endings.values()} == {("lost", 0)}
    job.open(0)
    stayed = {"attempt": 1, "tries": 1, "failures": 1, "reached": 45, "run": "linear-of-0", "snapshot": 40}
    fresh = {"run": "linear-of-later", "occupied": "The run directory is not empty.", "snapshot": 999, "failures": 3}
    starts = job.join(node0=fresh, node1=stayed, node2=stayed | {"snapshot": 20})
    assert {(start.attempt, start.run, start.snapshot) for start in starts.values()} == {(2, "linear-of-0", 40)}
    assert {(start.tries, start.failures, start.reached) for start in starts.values()} == {(1, 1, 45)}


@pytest.mark.parametrize("met", [True, False])
def test_a_node_0_that_was_met_is_waited_for_and_nobody_looks_for_a_typing_mistake(
    launchers: Callable[..., Launchers], monkeypatch: pytest.MonkeyPatch, met: bool
) -> None:
    """While a pod is replaced its name does not resolve."""
    job = launchers(2, timeout=5.0)
    job.open(*((0, 1) if met else (1,)))
    if met:
        job.join()
        job.close(0)
        job.report("peer")

    def vanished(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", vanished)
    gave_up = job.join(1)[1]
    assert isinstance(gave_up, LaunchError)
    back = [line for line in job.lines[1] if line.startswith("waiting for node 0 to come back: MASTER_ADDR=127.0.0.1 ")]
    assert bool(back) == met, job.lines
    assert ("a typing mistake" in "\n".join([*job.lines[1], str(gave_up)])) != met, job.lines


def test_a_node_0_that_missed_its_own_start_leads_the_next_attempt(
    launchers: Callable[..., Launchers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen just then, and its own server gave it up."""
    read, missed = Client._read_start, []

    def miss_once(self: Client, start: Start, link: Link, info: NodeInfo, neighbours: NeighbourCheck) -> AttemptStart:
        if info.node_rank == 0 and not missed:
            missed.append(start.attempt)
            raise ConnectionResetError
        return read(self, start, link, info, neighbours)

    monkeypatch.setattr(Client, "_read_start", miss_once)
    job = launchers(2)
    job.open(0, 1)

    def join(rank: int, rendezvous: Rendezvous) -> AttemptStart | None:
        start = rendezvous.join(make_info(rank, 2))
        if rank == 1 and start:
            outcome = make_outcome(rank, "peer")
            assert rendezvous.report(outcome, AGAIN).verdict.first.node_rank == 0
            start = rendezvous.join(
                make_info(rank, 2, attempt=start.attempt, tries=1, nonce=start.nonce, run=start.run)
            )
        return start

    starts = job.all(join)
    assert missed == [1]
    assert {rank: start.attempt for rank, start in starts.items()} == {0: 2, 1: 2}


def test_an_occupied_run_directory_ends_a_new_job(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2)
    job.open(0, 1)
    ends = job.join(node0={"occupied": "The run directory run is not empty."})
    assert all(error.code == 78 and "is not empty" in str(error) for error in ends.values())


@pytest.mark.parametrize("change", [{"image": "other"}, {"problem": "/checkpoints is mounted read-only."}])
def test_a_newcomer_that_does_not_fit_is_turned_away_and_the_job_goes_on_without_it(
    launchers: Callable[..., Launchers], change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SETTLE_SECONDS", PATIENCE)
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    done = job.join(node0={"tries": 1}, node1={"tries": 1}, node2=change)
    assert done[2].code == 78
    assert str(next(iter(change.values()))) in str(done[2])
    assert {done[rank].nodes for rank in (0, 1)} == {2}


def test_a_new_node_0_that_does_not_fit_ends_alone_and_the_others_go_on_waiting(
    launchers: Callable[..., Launchers],
) -> None:
    job = launchers(2)
    job.open(0, 1)
    first = job.begin_to_join(1, node1={"tries": 1})
    assert job.join(0, node0={"image": "other"})[0].code == 78
    job.close(0)
    job.open(0)
    assert job.join(0)[0].tries == 1
    assert first()[1].tries == 1


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_while_nodes_wait_ends_the_wait_for_all_of_a_fixed_job(
    launchers: Callable[..., Launchers], stopped: int
) -> None:
    job = launchers(3)
    job.open(0, 1)
    ended = job.begin_to_join()
    job.wait_for_nodes(2)
    job.rendezvous[stopped].stop("SIGTERM", "SIGTERM")
    said = (
        f"stopped by the system: SIGTERM on node {stopped} (host{stopped}) came while the nodes waited for each other.\n"
        "  exit code   75 (a scheduler should requeue)"
    )
    assert {rank: (error.code, str(error)) for rank, error in ended().items()} == {0: (75, said), 1: (75, said)}


def test_a_sick_node_leaves_an_elastic_job(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    words = ("peer", "unhealthy", "peer")
    endings = job.all(lambda rank, rendezvous: rendezvous.report(make_outcome(rank, words[rank]), AGAIN))
    assert endings[0].leaving == (1,)
