"""One verdict on all nodes, whoever fails or vanishes."""

import threading
import time
from collections.abc import Callable

import pytest
from stage import Client, Launcher, make_outcome, play, take_part
from waiting import PATIENCE, wait_until

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous import server
from slipway.launch.rendezvous.coordinator import Coordinator
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome

Make = Callable[..., Launcher]


def end_with(node_rank: int, word: str, **changes: object) -> Callable[[Rendezvous], Outcome]:
    return lambda rendezvous: make_outcome(node_rank, word, **changes)


def hear_of_others(node_rank: int) -> Callable[[Rendezvous], Outcome]:
    """A survivor: its workers run until the rendezvous has news, and then count as ended by a peer."""

    def work(rendezvous: Rendezvous) -> Outcome:
        news = wait_until(lambda: rendezvous.news, "news")
        return make_outcome(node_rank, "peer", evidence=f"ended because of node {news.node_rank}")

    return work


def test_a_node_that_still_works_is_waited_for_longer_than_one_that_is_missing(launcher: Make) -> None:
    """Its heartbeats say that it lives: a script may export for long on one node when the others are done."""
    launchers = [launcher(rank, 2, timeout=0.5, patience=0.1, more={"heartbeat": 1.0}) for rank in range(2)]
    launchers[0].work = lambda rendezvous: time.sleep(2.0) or make_outcome(0)
    play(*launchers)
    assert [one.code for one in launchers] == [0, 0]


def test_a_rendezvous_that_breaks_leaves_nobody_waiting(launcher: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_compare", lambda coordinator: 1 / 0)
    launchers = [launcher(rank, 2, timeout=1.0) for rank in range(2)]
    play(*launchers)
    assert [one.code for one in launchers] == [1, 76]
    assert launchers[0].lines == [
        "internal error while nodes waited for each other: ZeroDivisionError: division by zero"
    ]


@pytest.mark.parametrize(("ends", "word"), [(1, "failed"), (1, None), (0, None)], ids=["failed", "lost", "node 0 lost"])
def test_news_wakes_a_launcher_that_waits_for_its_workers(launcher: Make, ends: int, word: str | None) -> None:
    woken = threading.Event()

    def wait(rendezvous: Rendezvous) -> Outcome:
        while not rendezvous.news:
            assert woken.wait(60), "nobody woke this launcher"
            woken.clear()
        return make_outcome(2, "peer")

    launchers = [launcher(rank, 3, work=hear_of_others(rank)) for rank in range(3)]
    launchers[ends].work = lambda rendezvous: make_outcome(ends, word) if word else None
    launchers[2].work, launchers[2].more = wait, {"wake": woken.set}
    play(*launchers)
    assert launchers[2].verdict is not None
    assert launchers[2].verdict.first.node_rank == ends


def test_a_node_0_lost_after_a_report_does_not_hide_the_reason(launcher: Make) -> None:
    launchers = [launcher(rank, 2) for rank in range(2)]

    def leave(rendezvous: Rendezvous) -> None:
        wait_until(lambda: rendezvous.news, "the report of the other node")

    launchers[0].work = leave
    launchers[1].work = end_with(1, "failed", evidence="exit code 3")
    play(*launchers)
    assert launchers[1].code == 1
    assert launchers[1].verdict is not None
    assert launchers[1].verdict.first.evidence == "exit code 3"


def test_a_node_that_stays_silent_after_a_failure_is_waited_for_only_so_long(launcher: Make, port: int) -> None:
    node0 = launcher(0, 2, patience=1.0, work=end_with(0, "failed", evidence="exit code 3"))
    node0.start()
    with Client(port) as silent:
        take_part(silent)
        assert silent.wait_for(wire.News).outcome.evidence == "exit code 3"
        verdict = silent.wait_for(Ending).verdict
    node0.join(10)
    assert node0.code == 1
    assert [(tally.word, tally.nodes) for tally in verdict.tallies] == [("failed", 1), ("lost", 1)]


def test_a_report_in_another_nodes_name_counts_for_its_sender(launcher: Make, port: int) -> None:
    node0 = launcher(0, 2, work=end_with(0, "peer"))
    node0.start()
    with Client(port) as liar:
        take_part(liar)
        liar.send(wire.Report(make_outcome(0, "failed", host="host0")))
        verdict = liar.wait_for(Ending).verdict
    node0.join(10)
    assert (verdict.first.node_rank, verdict.first.host) == (1, "host1")


def test_who_still_speaks_when_node_0_ends_is_not_cut_off(
    launcher: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLOSE_SECONDS", PATIENCE)
    node0 = launcher(0, 2, work=end_with(0, "finished"))
    node0.start()
    with Client(port) as peer:
        take_part(peer)
        peer.send(wire.Report(make_outcome(1, "finished")))
        peer.wait_for(Ending)
        while peer.receive():
            pass
        for _ in range(
            2
        ):  # a connection that node 0 had closed would answer the first with a reset, and the second would fail
            peer.send(wire.Pong())
    node0.join(PATIENCE)
    assert node0.code == 0
