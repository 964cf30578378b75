"""Who may lead a job with spare nodes when node 0 cannot be reached."""

from pathlib import Path
from random import Random

import pytest

from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.leadership import may_lead


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
