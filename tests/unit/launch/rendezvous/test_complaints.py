"""How often a launcher says why it cannot reach node 0, and what node 0 says where nobody can find it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slipway.launch.rendezvous.connection_errors import (
    CAUSE_SECONDS,
    CAUSES,
    LINE_SECONDS,
    Complaints,
    explain_service,
    service_name,
)

TEN_MINUTES = 600.0


def wait(kinds: list[str], seconds: float = TEN_MINUTES) -> tuple[list[float], list[float]]:
    """When causes and lines are said by a launcher that tries once a second; the kinds of failures come in turn."""
    complaints, causes, lines = Complaints(), list[float](), list[float]()
    for moment in range(3, int(seconds)):
        kind = kinds[moment % len(kinds)]
        if complaints.explains(kind, moment):
            causes.append(moment)
        elif not complaints.is_due(moment):
            continue
        complaints.say(moment)
        lines.append(moment)
    return causes, lines


def test_lines_become_rarer_the_longer_it_lasts() -> None:
    _, lines = wait(["does not resolve"])
    pauses = [later - earlier for earlier, later in pairwise(lines)]
    assert pauses[0] == LINE_SECONDS[0]
    assert max(pauses) == pauses[-2] == LINE_SECONDS[1]
    assert len(lines) < 40


@pytest.mark.parametrize("kinds", [["does not resolve"], ["does not resolve", "no DNS"], ["refused", "timed out"]])
def test_the_cause_is_never_more_than_a_few_minutes_back(kinds: list[str]) -> None:
    causes, _ = wait(kinds, seconds=3 * TEN_MINUTES)
    moments = [0.0, *causes, 3 * TEN_MINUTES]
    assert max(later - earlier for earlier, later in pairwise(moments)) <= CAUSE_SECONDS + 1
    assert len(causes) <= len(kinds) * (3 * TEN_MINUTES / CAUSE_SECONDS + 1), "and it is no line of every second"


def test_a_cause_that_is_new_is_said_at_once() -> None:
    complaints = Complaints()
    assert complaints.explains("does not resolve", 100.0)
    complaints.say(100.0)
    assert not complaints.is_due(101.0)
    assert complaints.explains("refused", 101.0)


@pytest.mark.parametrize(
    ("address", "service"),
    [
        ("slipway-0.slipway.team.svc.cluster.local", "slipway.team.svc.cluster.local"),
        ("set-node-0-0.set.default.svc.cluster.local.", "set.default.svc.cluster.local"),
        ("slipway-0.slipway", "slipway"),
        ("slipway.team.svc.cluster.local", ""),  # the Service itself
        ("slipway.team.svc", ""),
        ("slipway-0", ""),
        ("node0.example.com", ""),
        ("10.0.0.7", ""),
        ("fd00::1", ""),
    ],
)
def test_the_service_behind_a_pods_name(address: str, service: str) -> None:
    assert service_name(address) == service


@pytest.mark.parametrize("kind", ["does not resolve", "no DNS"])
def test_node_0_says_what_to_look_at_where_its_service_is_not_there(kind: str) -> None:
    told = explain_service("slipway.team.svc.cluster.local", (kind, "Name or service not known"))
    assert "slipway.team.svc.cluster.local, does not resolve (Name or service not known)" in told
    assert "kubectl get service slipway --namespace team" in told
    assert kind in CAUSES
