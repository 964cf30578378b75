"""Who falls silent is lost, whether it froze, was cut off, or somebody came in its place."""

import threading
import time
from collections.abc import Callable

import pytest
from stage import Client, Launcher, make_info, make_outcome, take_part
from test_endings import hear_of_others
from waiting import wait_until

from slipway.launch.rendezvous import coordinator, neighbour_check
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.server import PONG_SECONDS

Make = Callable[..., Launcher]
QUICK = {"heartbeat": 1.0}


def test_a_launcher_that_answers_no_ping_is_lost_to_all(launcher: Make, port: int) -> None:
    launchers = [launcher(rank, 3, work=hear_of_others(rank), more=QUICK) for rank in range(2)]
    for one in launchers:
        one.start()
    with Client(port) as silent:
        take_part(silent, 2, 3)
        fell_silent = time.time()
        for one in launchers:
            one.join(15)
    for one in launchers:
        assert one.code == 76
        assert one.verdict is not None
        assert one.verdict.first.time < fell_silent + 0.9, "not when that was noticed: its peers may have failed since"
        assert (one.verdict.first.node_rank, one.verdict.first.evidence) == (2, "no heartbeat for 1 s")


def test_a_launcher_that_freezes_while_the_neighbours_are_tested_is_missing_and_not_misconfigured(
    launcher: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node0 = launcher(0, 2)
    node0.start()
    with Client(port) as silent:
        with monkeypatch.context() as quick:
            for module in (coordinator, neighbour_check):
                quick.setattr(module, "PROBE_SECONDS", 1.0)
            assert isinstance(silent.introduce(make_info(1, 2)), wire.Welcome)
            silent.wait_for(wire.Probe)
            while silent.receive() is not None:  # until node 0 hangs up on who answers neither its probe nor a ping
                pass
        second = launcher(1, 2)
        second.start()
        node0.join(15)
        second.join(15)
    assert (node0.code, second.code) == (0, 0), node0.log


def test_whoever_comes_in_the_place_of_a_silent_launcher_ends_the_wait_for_it(launcher: Make, port: int) -> None:
    """Long before the heartbeat's time-out: a replacement says that the first one is gone."""
    node0 = launcher(0, 2, work=hear_of_others(0), more={"heartbeat": 600.0})
    node0.start()
    with Client(port) as silent:
        take_part(silent, 1, 2)
        fell_silent = time.time()
        with Client(port) as second:  # which waits for an answer of the first one
            answer = second.introduce(make_info(1, 2), process="second")
            assert isinstance(answer, wire.Refused)
            assert answer.again
            node0.join(15)
    assert node0.verdict is not None
    assert node0.verdict.word == "lost"
    assert "another launcher has replaced it" in node0.verdict.first.evidence
    assert node0.verdict.first.time < fell_silent + 0.9 * PONG_SECONDS, "not when it was replaced"


def test_a_newcomer_waits_for_the_next_attempt_longer_than_it_would_for_a_missing_node(launcher: Make) -> None:
    """Its time-out counts how long nodes are missing, and the job is there."""
    over = threading.Event()
    node0 = launcher(0, 2, work=lambda rendezvous: over.wait(20) and make_outcome(0), more={"least": 1})
    newcomer = launcher(1, 2, timeout=1.5)
    node0.start()
    wait_until(lambda: node0.begun, "the start")
    newcomer.start()
    time.sleep(4.5)
    assert newcomer.is_alive()
    over.set()
    node0.join(10)
    newcomer.join(15)
    assert newcomer.code == 76
    assert any("node 1 (host1) is present, and joins at the next attempt" in line for line in node0.lines)
    assert any("the job is running without this node" in line for line in newcomer.lines)
