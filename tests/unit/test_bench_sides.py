"""Sides of a comparison take turns, and what they took is told round by round."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from sides import Cost, Spread, ratio, run, take_turns


def test_sides_take_turns_and_the_first_run_of_each_does_not_count() -> None:
    order: list[str] = []
    sides = {name: lambda name=name: order.append(name) or Cost(len(order), 0.0) for name in ("a", "b")}
    costs = take_turns(sides, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [cost.wall for cost in costs["a"]] == [4, 5, 8]


def test_a_ratio_is_that_of_each_round() -> None:
    costs, others = [Cost(2.0, 0), Cost(9.0, 0), Cost(4.0, 0)], [Cost(1.0, 0), Cost(3.0, 0), Cost(4.0, 0)]
    assert ratio(costs, others) == Spread(2.0, 1.0, 3.0)


def test_a_command_is_counted_with_its_children_and_fails_with_its_last_words(tmp_path: Path) -> None:
    spin = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(3_000_000))'])"
    cost = run([sys.executable, "-c", spin], tmp_path, os.environ)
    assert cost.cpu > 0
    assert cost.wall > 0
    with pytest.raises(RuntimeError, match=r"ended with 3:\nwhy"):
        run([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path, os.environ)
