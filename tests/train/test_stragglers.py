"""A rank that makes all others wait is named, and nobody else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_jobs import Run

from slipway.train.loop import own_time
from slipway.train.loop.own_time import TOLD, Causes, OwnTime
from slipway.train.loop.stragglers import MARGIN, WINDOW, WINDOWS, find_straggler

Start = Callable[..., Run]
CPU = torch.device("cpu")
OPTIONS = ("--dataset-size", 240, "--batch-size", 12, "--steps", 60, "--save-every", 0, "--log-every", 10)
PAUSE = 0.03  # s of each step, on all ranks: beside it what others do on this machine is little


def windows(*rows: Sequence[float]) -> list[list[float]]:
    return [list(row) for row in rows]


@pytest.mark.parametrize(
    ("seen", "rank", "slower"),
    [
        ([(1.0, 1.2)] * WINDOWS, 1, 0.2),
        ([(1.2, 1.0, 1.0)] * WINDOWS, 0, 0.2),
        ([(1.0, 1.3, 1.0, 1.5)] * WINDOWS, 3, 0.5),  # the slowest of two
        ([(1.0, 1.0, 9.0, 1.3)] * 1 + [(1.0, 1.0, 1.0, 1.3)] * (WINDOWS - 1), 3, 0.3),  # a hiccup of another one
        ([(1.0, 1.0)] * 1 + [(1.0, 1.4)] * (WINDOWS - 1), 1, 0.4),
        ([(1.0, 1.0)] * 2 + [(1.0, 1.4)] * (WINDOWS - 2), None, 0),  # it has just begun
        ([(1.0, 1.4), (1.4, 1.0)] * WINDOWS, None, 0),  # now this one, now that one
        ([(1.0, 1.0, 1.0)] * WINDOWS, None, 0),
        ([(1.0, MARGIN)] * WINDOWS, None, 0),
        ([(1.0, 2.0)] * (WINDOWS - 1), None, 0),  # too little is known
        ([(1.0,)] * WINDOWS, None, 0),
        ([(0.0, 0.0)] * WINDOWS, None, 0),
    ],
)
def test_who_is_slower_than_the_median_of_the_others_again_and_again(
    seen: list[tuple[float, ...]], rank: int | None, slower: float
) -> None:
    found = find_straggler(windows(*seen[-WINDOWS:]))
    assert (found.rank if found else None) == rank
    if found:
        assert found.slower == pytest.approx(slower)
        assert str(found) == f"rank {rank} is {slower:.0%} slower than the others"


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_noise_of_equals_names_nobody(ranks: int) -> None:
    dice, named = random.Random(ranks), 0
    for _ in range(500):
        row = [[1 + abs(dice.gauss(0, 0.04)) for _ in range(ranks)] for _ in range(WINDOWS)]
        named += find_straggler(row) is not None
    assert named == 0


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_is_a_fifth_slower_is_named_through_the_same_noise(ranks: int) -> None:
    dice, right = random.Random(ranks), 0
    for _ in range(500):
        slow = dice.randrange(ranks)
        row = [
            [(1.2 if rank == slow else 1) * (1 + abs(dice.gauss(0, 0.04))) for rank in range(ranks)]
            for _ in range(WINDOWS)
        ]
        found = find_straggler(row)
        right += found is not None and found.rank == slow
    assert right >= 475


class Clock:
    """Goes on as it is told."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(own_time.time, "perf_counter", made)
    return made


def test_what_lies_between_the_last_gradient_and_the_others_is_not_ones_own(clock: Clock) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    watch = OwnTime(net.parameters(), CPU)
    net(torch.ones(2, 3)).sum().backward()
    watch.settle()
    for waited in (10.0, 100.0, 1000.0):
        watch.begin()
        clock.time += 1  # forward
        net(torch.ones(2, 3)).sum().backward()
        clock.time += waited
        watch.go_on()
        clock.time += 4  # the optimizer
        watch.end()
    watch.data = 1.5
    assert watch.take() == pytest.approx(1 + 4 + 1.5 / 2)
    assert math.isnan(watch.take()), "each step counts once, and the newest not yet"
    watch.drop()
    assert math.isnan(watch.take())


def test_a_step_whose_last_gradient_was_not_seen_does_not_count(clock: Clock) -> None:
    watch = OwnTime([], CPU)
    watch.settle()
    watch.begin()
    clock.time += 5
    watch.go_on()
    watch.end()
    assert math.isnan(watch.take())


def test_causes_are_told_by_their_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, files = [0.0], {"schedstat": "0 0 0", "cpu.stat": "usage_usec 7\nthrottled_usec 0"}
    monkeypatch.setattr(own_time.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(own_time, "read_kernel_file", lambda path: files[path.name])
    causes = Causes(CPU, 3)
    for seconds, waited, throttled in ((0, 0, 0), (10, 1e9, 0), (20, 4e9, 5_000_000)):
        now[0] = seconds
        files |= {"schedstat": f"1 {waited:.0f} 1", "cpu.stat": f"usage_usec 7\nthrottled_usec {throttled}"}
        causes.look(2.5)
    text = causes.text()
    assert "25% of the time it waits for its data" in text
    assert "20% of the time it waits for a processor that others use" in text
    assert "25% of the time its quota of" in text
    calm = Causes(CPU, 2)
    calm.look(0)
    calm.look(0)
    assert calm.text() == ""
    assert TOLD < 0.2


@pytest.mark.parametrize(
    ("ranks", "slower", "known"),
    [(2, (1, "part"), ""), (3, (0, "part"), ""), (2, (0, "data"), "of the time it waits for its data")],
)
def test_the_rank_that_all_wait_for_is_named_within_fifty_steps(
    ranks: int, slower: tuple[int, str], known: str, job: Start
) -> None:
    rank, what = slower
    pauses: dict[str, Any] = {"slow": {what: PAUSE}, "slower": [rank, what, PAUSE / 3]}
    run = job("linear", *OPTIONS, "--workers", 1 if what == "data" else 0, processes=ranks, **pauses)
    assert run.exit_code == 0, run.output
    assert f"warning: all others wait: rank {rank} is " in run.output
    assert run.output.count("warning: all others wait") == 1
    assert "slower than the others, on node 0 (" in run.output
    assert known in run.output
    named = [row for row in run.metrics if "slow_rank" in row]
    assert named, "the line of step 50 has it"
    assert named[0]["step"] <= 50
    assert {row["slow_rank"] for row in named} == {rank}
    beats = [beat(run, each) for each in range(ranks)]
    assert beats[0]["slow"][0] == rank
    assert beats[0]["waited"][str(rank)] > 0
    assert max(range(ranks), key=lambda each: beats[each]["own"]) == rank


def test_nobody_is_named_where_all_are_as_fast(job: Start) -> None:
    run = job("linear", *OPTIONS, processes=3, slow={"part": PAUSE})
    assert run.exit_code == 0, run.output
    assert "slower" not in run.output
    assert not [row for row in run.metrics if "slow_rank" in row]
    assert beat(run, 1)["own"] == pytest.approx(PAUSE, rel=0.5)
    assert beat(run, 1)["waited"] == {}


def test_a_process_alone_waits_for_nobody(job: Start) -> None:
    run = job("linear", *OPTIONS, processes=1, slow={"part": 0.001})
    assert run.exit_code == 0, run.output
    assert "own" not in beat(run, 0)
    assert WINDOW * WINDOWS < 50, "within fifty steps"


def beat(run: Run, rank: int) -> dict[str, Any]:
    """The last heartbeat of a rank."""
    found: dict[str, Any] = json.loads((run.folder / f"node-0/heartbeat/rank-{rank}.json").read_text())
    return found
