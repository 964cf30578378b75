"""Who may lead a job with spare nodes when node 0 cannot be reached."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from participants import make_info

from slipway.launch.rendezvous.config import Endpoint, RendezvousConfig
from slipway.launch.rendezvous.leadership import (
    REDIRECT_SECONDS,
    VOTE_SECONDS,
    YIELD_SECONDS,
    Leadership,
    find_leaders,
    follows,
    may_lead,
)
from slipway.launch.rendezvous.messages import Hello, Led, Successor


def make_config(nodes: int, spares: int, node_rank: int = 1) -> RendezvousConfig:
    return RendezvousConfig(
        node_rank=node_rank,
        nodes=nodes,
        spares=spares,
        address="node0",
        port=29500,
        timeout=1.0,
        folder=Path(),
        say=print,
        random=Random(47),
    )


@pytest.mark.parametrize(
    ("nodes", "spares", "node_rank", "asking", "leads"),
    [
        (2, 1, 2, {1, 2}, True),
        (2, 1, 2, {2}, False),
        (2, 1, 2, {0, 1}, False),  # without this launcher itself
        (2, 1, 2, {0, 1, 2}, True),
        (3, 2, 4, {1, 3, 4}, True),
        (3, 2, 4, {3, 4}, False),  # two spare nodes, cut off from those that train
        (2, 2, 3, {1, 2, 3}, False),  # nodes 0 and 1 could train without them
        (2, 0, 1, {0, 1}, False),
    ],
)
def test_a_launcher_leads_where_as_many_as_an_attempt_needs_ask_it(
    nodes: int, spares: int, node_rank: int, asking: set[int], leads: bool
) -> None:
    assert may_lead(make_config(nodes, spares, node_rank), asking) == leads


def test_no_two_groups_of_launchers_can_be_large_enough() -> None:
    for nodes in range(2, 9):
        for spares in range(1, 9):
            if make_config(nodes, spares).succeeds:
                assert nodes + spares - nodes < nodes, f"{nodes}+{spares}"


NODE_0, LED = Endpoint("node0", 29500), Endpoint("10.0.0.3", 4242)
FIRST, SECOND = Successor(3, "h", "10.0.0.4", 1, True), Successor(4, "h", "10.0.0.5", 2, False)


@pytest.mark.parametrize(
    ("led", "lost", "places"),
    [
        (NODE_0, False, {"10.0.0.4": 0, "10.0.0.5": 5}),
        (NODE_0, True, {"10.0.0.4": 0, "10.0.0.5": 5}),
        (LED, False, {"10.0.0.3": 0, "10.0.0.4": 5, "10.0.0.5": 10}),
        (LED, True, {"10.0.0.3": -5, "10.0.0.4": 0, "10.0.0.5": 5}),  # nobody waits for the one that is lost
        (Endpoint("10.0.0.4", 1), False, {"10.0.0.4": 0, "10.0.0.5": 5}),
    ],
)
def test_the_launcher_that_led_last_is_asked_first_unless_it_is_lost(
    led: Endpoint, lost: bool, places: dict[str, float]
) -> None:
    found = find_leaders(make_config(3, 2), led, [FIRST, SECOND], lost=lost)
    assert {place.address: pause for place, pause in found} == places


def make_hello(node_rank: int, process: str = "p", **info: Any) -> Hello:
    return Hello(process, 0.0, 1, "key", make_info(node_rank, 2, **info))


def test_a_vote_counts_for_a_while_and_for_its_job_alone() -> None:
    leadership = Leadership(make_config(2, 1))
    assert [leadership.vote(make_hello(rank, nonce=nonce), 0.0) for rank, nonce in ((1, "a"), (2, ""), (3, "a"))] == [
        True, True, False,
    ]  # fmt: skip
    assert (leadership.voters("a", 1.0), leadership.voters("b", 1.0)) == ({1, 2}, {2})
    assert leadership.voters("a", VOTE_SECONDS) == set()
    assert not Leadership(make_config(2, 0)).vote(make_hello(1), 0.0)


def test_node_0_leaves_the_lead_to_the_launcher_that_led_unless_that_is_lost() -> None:
    node_0, spare = (Leadership(make_config(2, 1, node_rank)) for node_rank in (0, 2))
    node_0.follow(Led(make_info(2, 2), "10.0.0.3", 4242), 0.0)
    assert (node_0.head_start(led=False, lost=False), spare.head_start(led=False, lost=False)) == (YIELD_SECONDS, 0.0)
    assert node_0.redirect(REDIRECT_SECONDS - 1)
    assert node_0.redirect(REDIRECT_SECONDS) is None
    assert node_0.head_start(led=False, lost=True) == 0.0
    assert node_0.redirect(1.0) is None


@pytest.mark.parametrize(
    ("again", "superseded"),
    [
        (make_hello(1, "old", tries=1, attempt=1), True),  # the new one was a member later
        (make_hello(1, "old", tries=2, attempt=2), False),  # and missed the attempt of this one
        (make_hello(1, "new", tries=1, attempt=1), False),
        (make_hello(1, "third", tries=1, attempt=1), False),
        (make_hello(1, "third", tries=1, attempt=0), True),  # it missed an attempt
    ],
)
def test_a_launcher_is_superseded_by_one_of_its_rank_that_was_a_member_later(again: Hello, superseded: bool) -> None:
    leadership = Leadership(make_config(2, 1))
    for process in ("old", "new"):
        leadership.joined(make_hello(1, process, tries=1, attempt=1))
    assert leadership.is_superseded(again) == superseded


@pytest.mark.parametrize(
    ("node_rank", "nonce", "known", "followed"),
    [(0, "a", "", True), (0, "a", "a", True), (0, "a", "b", False), (0, "", "", False), (2, "a", "", False)],
)
def test_node_0_follows_a_launcher_that_leads_this_job(node_rank: int, nonce: str, known: str, followed: bool) -> None:
    info = make_info(1, 2, nonce=nonce)
    assert follows(make_config(2, 1, node_rank), info, None, known) == followed
    assert not follows(make_config(2, 0, node_rank), info, None, known), "a job without spare nodes"
