"""Who was asked to stop, at the moments in which others count on it or come in its place."""

import time
from collections.abc import Callable

import pytest
from stage import Client, Launcher, answer_neighbour, make_info, make_outcome, take_part
from waiting import wait_until

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.client import STOPS
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.verdict.verdict import Outcome

Make = Callable[..., Launcher]


def test_who_leaves_an_elastic_job_while_the_neighbours_are_tested_has_no_part_in_the_start(
    launcher: Make, port: int
) -> None:
    node0 = launcher(0, 2, more={"least": 1, "window": 15.0})
    node0.start()
    with Client(port) as leaver:
        probed = answer_neighbour(leaver, make_info(1, 2))
        time.sleep(0.5)  # node 0's own answer comes first, so that these two complete the test
        leaver.socket.sendall(leaver.seal(probed, wire.Stopping("SIGTERM", "SIGTERM")))
        assert leaver.wait_for(wire.End).code == 75
        node0.join(60)
    assert node0.begun is not None
    assert (node0.begun.nodes, node0.code) == (1, 0)


def test_a_launcher_that_asks_to_stop_for_ever_is_heard_so_often(launcher: Make, port: int) -> None:
    heard = []

    def work(rendezvous: Rendezvous) -> Outcome:
        wait_until(lambda: rendezvous.news, "the report that follows")
        heard.extend(rendezvous.stops)
        return make_outcome(0, "stopped")

    node0 = launcher(0, 2, work=work)
    node0.start()
    with Client(port) as mad:
        take_part(mad)
        for _ in range(10 * STOPS):
            mad.send(wire.Stopping("SIGTERM", "SIGTERM"))
        mad.send(wire.Report(make_outcome(1, "failed")))  # heard last, and told last
        node0.join(10)
    assert len(heard) == STOPS


def test_the_name_of_a_request_to_stop_is_bounded() -> None:
    with pytest.raises(ValueError, match="not a signal"):
        wire.Stopping("SIGTERM", "x" * 1000)
