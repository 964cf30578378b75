"""Attempt after attempt: who comes back, who is replaced, who leaves, and what the newcomers learn of the job."""

import socket
import threading
import time
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
from slipway.launch.verdict.cause import Cause, CauseKind
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
            return rendezvous.join(make_info(rank, infos.get("text", self._nodes), **infos.get(f"node{rank}", {})))

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

    def set_window(self, seconds: float) -> None:
        """From now on, node 0 waits for so long for more nodes than are enough, also where it waits already."""
        node0 = self.rendezvous[0]
        object.__setattr__(node0._config, "window", seconds)  # it is frozen
        node0._loop.call_soon_threadsafe(node0._server.wake)

    def report(self, word: str, rule: Rule = AGAIN, **others: str) -> dict[int, Any]:
        def act(rank: int, rendezvous: Rendezvous) -> Ending:
            return rendezvous.report(make_outcome(rank, others.get(f"node{rank}", word)), rule)

        return self.all(act)

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


def test_a_replaced_node_learns_the_jobs_run_attempt_and_snapshot(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2)
    job.open(0, 1)
    assert {start.attempt for start in job.join().values()} == {1}
    job.close(1)
    job.wait_for_news(0)
    assert job.report("peer")[0].pause == 0.0
    job.open(1)
    veteran = {"attempt": 1, "tries": 1, "failures": 1, "reached": 25, "snapshot": 20}
    for start in job.join(node0=veteran, node1={"snapshot": 999, "failures": 3, "reached": 999}).values():
        assert (start.attempt, start.run, start.tries, start.failures, start.reached, start.snapshot) == (
            2,
            "linear-of-0",
            1,
            1,
            25,
            20,
        )


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
    fresh = {"run": "linear-of-later", "occupied": "The run directory is not empty."}
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


def test_node_0s_rule_counts_for_all(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2)
    job.open(0, 1)
    job.join()
    rules: dict[int, Rule] = {
        0: lambda verdict, leaving: Ending(verdict, None, Cause(CauseKind.NO_RESTARTS)),
        1: AGAIN,
    }
    endings = job.all(lambda rank, rendezvous: rendezvous.report(make_outcome(rank, "failed"), rules[rank]))
    assert {(ending.pause, str(ending.why)) for ending in endings.values()} == {(None, "--max-restarts is 0")}


def test_a_stop_on_one_node_is_told_to_the_others(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3)
    job.open(0, 1, 2)
    job.join()
    job.rendezvous[1].stop("SIGUSR1", "SIGUSR1")
    wait_until(lambda: job.rendezvous[0].stops and job.rendezvous[2].stops, "the stop on both other nodes")
    assert [stop.text for stop in job.rendezvous[2].stops] == ["SIGUSR1 on node 1 (host1)"]
    assert not job.rendezvous[1].stops


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


def test_a_stop_while_nodes_wait_takes_one_node_out_of_an_elastic_job(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.rendezvous[2].stop("SIGTERM", "SIGTERM")
    starts = job.begin_to_join(0, 1, text="2:3")
    assert job.join(2, text="2:3")[2].code == 75
    job.set_window(0.0)
    assert {rank: start.nodes for rank, start in starts().items()} == {0: 2, 1: 2}


def test_an_elastic_job_starts_with_what_came_within_the_window(launchers: Callable[..., Launchers]) -> None:
    job = launchers(4, least=2, window=600.0)
    job.open(0, 1, 3)
    starts = job.begin_to_join(text="2:4")
    job.wait_for_nodes(3)
    job.set_window(0.0)
    assert {rank: (start.nodes, start.group_rank) for rank, start in starts().items()} == {
        0: (3, 0),
        1: (3, 1),
        3: (3, 2),
    }


def test_an_elastic_job_waits_for_its_smallest_number(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=0.0)
    job.open(0)
    first = job.begin_to_join(0, text="2:3")
    wait_until(lambda: any("waiting for nodes: 1 of 2 to 3" in line for line in job.lines[0]), "the line that says so")
    job.open(2)
    assert job.join(2, text="2:3")[2].group_rank == 1
    assert first()[0].nodes == 2


@pytest.mark.parametrize(("least", "nodes"), [(2, 2), (1, 2)])
def test_who_is_complete_waits_for_no_window(launchers: Callable[..., Launchers], least: int, nodes: int) -> None:
    job = launchers(nodes, least=least, window=600.0)
    job.open(0, 1)
    assert {start.nodes for start in job.join().values()} == {2}


def test_a_lost_node_shrinks_an_elastic_job_and_a_newcomer_is_taken_in_at_the_next_attempt(
    launchers: Callable[..., Launchers],
) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    assert job.join()[0].nodes == 3
    job.close(1)
    job.wait_for_news(0)
    job.report("peer")
    job.set_window(0.0)
    starts = job.join(node0={"tries": 1}, node2={"tries": 1})
    assert {rank: start.group_rank for rank, start in starts.items()} == {0: 0, 2: 1}
    job.set_window(600.0)
    job.open(1)
    newcomer = job.begin_to_join(1)
    wait_until(lambda: any("joins at the next attempt" in line for line in job.lines[0]), "the newcomer")
    job.all(lambda rank, rendezvous: rendezvous.report(make_outcome(rank, "failed"), AGAIN), 0, 2)
    starts = job.join(0, 2, node0={"tries": 2, "attempt": 2}, node2={"tries": 2, "attempt": 2}) | newcomer()
    assert {rank: (start.nodes, start.attempt) for rank, start in starts.items()} == dict.fromkeys(range(3), (3, 3))


def test_who_was_asked_to_stop_leaves_an_elastic_job_and_the_others_go_on(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    job.rendezvous[2].stop("SIGTERM", "SIGTERM")
    endings = job.report("stopped")
    assert {ending.leaving for ending in endings.values()} == {(2,)}
    assert not job.rendezvous[0].stops


@pytest.mark.parametrize("asked", [(0,), (1, 2), (0, 1, 2)])
def test_an_elastic_job_stops_as_a_whole_where_too_few_remain_or_node_0_goes(
    launchers: Callable[..., Launchers], asked: tuple[int, ...]
) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    for rank in asked:
        job.rendezvous[rank].stop("SIGTERM", "SIGTERM")
    assert {ending.leaving for ending in job.report("stopped").values()} == {()}


def test_an_elastic_job_that_its_user_stops_on_one_node_stops_everywhere(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    job.rendezvous[2].stop("SIGINT", "SIGINT")
    wait_until(lambda: job.rendezvous[1].stops, "the stop on another node")
    endings = job.report("cancelled", lambda verdict, leaving: Ending(verdict))
    assert {ending.verdict.word for ending in endings.values()} == {"cancelled"}


def test_a_sick_node_leaves_an_elastic_job(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    assert job.report("peer", node1="unhealthy")[0].leaving == (1,)


def test_for_those_that_stayed_when_others_left_nothing_is_waited_for(launchers: Callable[..., Launchers]) -> None:
    job = launchers(3, least=2, window=600.0)
    job.open(0, 1, 2)
    job.join()
    job.rendezvous[2].stop("SIGTERM", "SIGTERM")
    job.report("stopped")
    starts = job.join(0, 1, node0={"tries": 1}, node1={"tries": 1})
    assert {start.nodes for start in starts.values()} == {2}


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 2)])
def test_who_is_told_to_go_and_will_be_replaced_leaves_alone(
    launchers: Callable[..., Launchers], asked: tuple[int, ...]
) -> None:
    job = launchers(3, replaced=True)
    job.open(0, 1, 2)
    job.join()
    for rank in asked:
        job.rendezvous[rank].stop("SIGTERM", "SIGTERM")
    assert {ending.leaving for ending in job.report("stopped").values()} == {asked}
    assert not any(rendezvous.stops for rendezvous in job.rendezvous.values())


@pytest.mark.parametrize("told", [(1,), (0, 2)])
def test_the_others_wait_for_every_replacement_node_0_included(
    launchers: Callable[..., Launchers], told: tuple[int, ...]
) -> None:
    job = launchers(3, replaced=True)
    job.open(0, 1, 2)
    job.join()
    for rank in told:
        job.rendezvous[rank].stop("SIGTERM", "SIGTERM")
    job.report("stopped")
    job.close(*told)
    veteran = {"tries": 1, "attempt": 1, "snapshot": 20, "run": "linear-of-0"}
    stayed = job.begin_to_join(*job.rendezvous, **{f"node{rank}": veteran for rank in job.rendezvous})
    job.open(*told)
    starts = job.join(*told, node0={"run": "linear-of-later"} if 0 in told else veteran) | stayed()
    assert [(start.run, start.attempt, start.snapshot, start.nodes) for start in starts.values()] == [
        ("linear-of-0", 2, 20, 3)
    ] * 3


@pytest.mark.parametrize(
    "stops",
    [
        {0: "SIGTERM", 1: "SIGTERM", 2: "SIGTERM"},  # the whole job is deleted
        {1: "SIGINT"},
        {0: "SIGTERM", 2: "SIGINT"},
    ],
)
def test_where_all_are_told_to_go_or_the_user_stops_the_job_nobody_is_replaced(
    launchers: Callable[..., Launchers], stops: dict[int, str]
) -> None:
    job = launchers(3, replaced=True)
    job.open(0, 1, 2)
    job.join()
    for rank, name in stops.items():
        job.rendezvous[rank].stop(name, name)
    others = set(range(3)) - set(stops)
    wait_until(lambda: all(job.rendezvous[rank].stops for rank in others), "the stop on all other nodes")
    assert {ending.leaving for ending in job.report("stopped").values()} == {()}


@pytest.mark.parametrize("asked", [0, 2])
def test_who_is_told_to_go_between_two_attempts_leaves_alone(launchers: Callable[..., Launchers], asked: int) -> None:
    job = launchers(3, replaced=True)
    job.open(0, 1, 2)
    job.join()
    job.rendezvous[1].stop("SIGTERM", "SIGTERM")
    job.report("stopped")
    job.rendezvous[asked].stop("SIGTERM", "SIGTERM")
    time.sleep(0.3)
    assert not any(rendezvous.stops for rank, rendezvous in job.rendezvous.items() if rank != asked)


@pytest.mark.parametrize("asked", [0, 1])
def test_who_is_told_to_go_while_nodes_wait_leaves_and_the_others_wait_for_its_replacement(
    launchers: Callable[..., Launchers], asked: int
) -> None:
    job = launchers(3, replaced=True)
    job.open(0, 1)
    leaves, waits = job.begin_to_join(asked), job.begin_to_join(1 - asked)
    job.wait_for_nodes(2)
    job.rendezvous[asked].stop("SIGTERM", "SIGTERM")
    assert leaves()[asked].code == 75
    job.close(asked)
    job.open(asked, 2)
    starts = job.join(asked, 2) | waits()
    assert {rank: start.nodes for rank, start in starts.items()} == dict.fromkeys(range(3), 3)


def test_a_sick_node_that_will_be_replaced_leaves_alone(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2, replaced=True)
    job.open(0, 1)
    job.join()
    assert job.report("peer", node0="unhealthy")[1].leaving == (0,)


VETERAN = {"attempt": 1, "tries": 1}


def agree_or_watch(rank: int, rendezvous: Rendezvous) -> Ending | None:
    """What becomes of an attempt that node 1 left: node 0 reports, and node 2 watches as a spare node."""
    if rank == 2:
        return rendezvous.watch(AGAIN, lambda: False)
    return rendezvous.report(make_outcome(rank, "peer"), AGAIN)


def join_with_a_spare_node(job: Launchers) -> dict[int, Any]:
    """Any two of the three nodes are enough to start, so node 2 is the spare only where it comes after the others."""
    job.open(0, 1)
    starts = job.join()
    job.open(2)
    return starts | job.join(2)


def test_a_spare_node_takes_the_place_of_a_lost_one_which_returns_as_a_spare_node(
    launchers: Callable[..., Launchers],
) -> None:
    job = launchers(2, spares=1)
    assert {rank: start.group_rank for rank, start in join_with_a_spare_node(job).items()} == {0: 0, 1: 1, 2: -1}
    job.close(1)
    job.wait_for_news(0)
    endings = job.all(agree_or_watch)
    assert endings[0] == endings[2]
    assert (endings[2].verdict.word, endings[2].verdict.first.node_rank) == ("lost", 1)
    starts = job.join(node0=VETERAN | {"place": 0}, node2=VETERAN)
    assert {rank: (start.attempt, start.nodes, start.group_rank) for rank, start in starts.items()} == {
        0: (2, 2, 0),
        2: (2, 2, 1),
    }
    assert any(note.startswith("node 2 (") and "takes place 1 of 2" in note for note in starts[0].notes)
    job.open(1)
    late = job.join(1)[1]
    assert (late.attempt, late.run, late.nonce, late.group_rank) == (2, starts[0].run, starts[0].nonce, -1)
    job.close(1)
    wait_until(lambda: any(line.startswith("spare node 1 (") for line in job.lines[0]), "a line about the spare node")
    assert [job.rendezvous[rank].news for rank in (0, 2)] == [None, None]


def test_a_spare_node_that_does_not_fit_is_refused_alone_whenever_it_comes(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2, spares=1)
    job.open(0, 2)
    early = job.begin_to_join(0)
    assert "differs from the others in torch" in str(job.join(2, node2={"torch": "0.1"})[2])
    job.open(1)
    starts = job.join(1) | early()
    assert {rank: start.group_rank for rank, start in starts.items()} == {0: 0, 1: 1}
    assert "differs from the others in torch" in str(job.join(2, node2={"torch": "0.1"})[2])
    assert job.rendezvous[1].news is None


def test_a_spare_node_that_loses_node_0_goes_by_its_own_rule(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2, spares=1)
    join_with_a_spare_node(job)
    job.close(0)
    ending = job.all(agree_or_watch, 2)[2]
    assert (ending.verdict.word, ending.verdict.first.node_rank, ending.pause) == ("lost", 0, 0.0)


def test_a_spare_node_that_is_asked_to_stop_watches_no_longer(launchers: Callable[..., Launchers]) -> None:
    job = launchers(2, spares=1)
    join_with_a_spare_node(job)
    job.rendezvous[2].stop("SIGTERM", "SIGTERM")
    assert job.rendezvous[2].watch(AGAIN, lambda: True) is None
    assert not job.rendezvous[0].stops
    assert job.rendezvous[0].has_enough()
