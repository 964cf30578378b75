"""The model of failures: what the page says is what it computes, and a simulation with the launcher's decisions agrees."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from failures import INTERVALS, MEMORY, NODES, Case, days_until_given_up, share_of_training, simulate, table

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("interval", INTERVALS)
def test_the_simulation_agrees_with_the_model_and_no_job_is_given_up(nodes: int, interval: float) -> None:
    case = Case(nodes, interval=interval)
    found = simulate(case, days=200, seed=30)
    assert not found.given_up
    assert found.share == pytest.approx(share_of_training(case), abs=0.005)


@pytest.mark.parametrize("nodes", NODES)
def test_it_agrees_with_snapshots_in_memory_too(nodes: int) -> None:
    case = Case(nodes, **MEMORY)
    assert simulate(case, days=200, seed=30).share == pytest.approx(share_of_training(case), abs=0.005)


def test_a_job_whose_failures_come_faster_than_it_starts_again_is_given_up() -> None:
    assert simulate(Case(4_096, rate=100.0), days=200).given_up


@pytest.mark.parametrize(
    "change", [{"stall": 1.0}, {"notice": 30.0}, {"restart": 60.0}, {"replace": 600.0}, {"rate": 0.01}]
)
def test_whatever_takes_longer_costs_training(change: dict[str, float]) -> None:
    assert share_of_training(replace(Case(256), **change)) < share_of_training(Case(256))


def test_without_failures_only_saves_cost_anything() -> None:
    assert share_of_training(Case(1, rate=1e-9, interval=99.0, stall=1.0)) == pytest.approx(0.99, abs=1e-4)
    assert days_until_given_up(Case(256)) == pytest.approx(4 / (256 * 0.005))


def test_the_page_shows_what_the_model_computes() -> None:
    page = (ROOT / "docs/fault-tolerance.md").read_text()
    for row in table(Case(NODES[0])):
        assert f"| {' | '.join(row)} |" in page
