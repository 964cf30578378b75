"""What node 0 does for each launcher does not depend on how many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from crowd import Cost, Crowd

from slipway.launch.rendezvous.messages import NodeInfo

FEW, MANY = 40, 160


def make_info(rank: int, tries: int) -> NodeInfo:
    """A launcher of a job that made so many attempts."""
    return NodeInfo(
        rank,
        str(MANY),
        f"gpu{rank}",
        "gpt",
        (),
        8,
        "nccl",
        "1.0",
        run="gpt-1",
        tries=tries,
        nonce="12ab" if tries else "",
    )


def count_calls(callback: Callable[..., object], args: tuple[object, ...]) -> float:
    """Run a callback; how many functions it called, as if each took a microsecond."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        callback(*args)
    finally:
        sys.setprofile(None)
    return calls * 1e-6


@pytest.fixture(scope="module", params=[0, 3], ids=["first attempt", "fourth attempt"])
def costs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Cost]]:
    """Of a job with few nodes, and of one with many."""
    folder = tmp_path_factory.mktemp("crowd")
    return [
        Crowd([make_info(rank, request.param) for rank in range(nodes)], folder, count_calls).live()
        for nodes in (FEW, MANY)
    ]


@pytest.mark.parametrize("part", ["agreement", "training", "lost", "verdict"])
def test_four_times_as_many_launchers_cost_four_times_as_much(costs: list[dict[str, Cost]], part: str) -> None:
    few, many = (cost[part] for cost in costs)
    assert many.messages / MANY <= 1.1 * few.messages / FEW
    assert many.busy / MANY <= 1.1 * few.busy / FEW


def test_agreement_takes_eight_messages_for_each_launcher(costs: list[dict[str, Cost]]) -> None:
    """Two greetings, proof, hello, welcome, probe, what it found, start. Node 0 visits its neighbour, and is visited: four more."""
    assert [cost["agreement"].messages for cost in costs] == [8 * FEW + 4, 8 * MANY + 4]
