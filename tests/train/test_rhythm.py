"""At which steps snapshots and checks come that cost time."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from slipway.train.worker import rhythm as module
from slipway.train.worker.rhythm import LAST, MEMORY_SHARE, TIMED, UNTIMED, CheckInterval, DiskRhythm, MemoryRhythm


@pytest.mark.parametrize(
    ("every", "cost", "pace", "due"),
    [
        ("auto", 0.0, 0.02, 11),  # nothing is known yet
        ("auto", 0.00149, 0.02, 20),  # 1.5 ms in 10 steps of 20 ms: 0.75 %
        ("auto", 0.0001, 10.0, 11),
        (3, 5.0, 0.02, 12),
        (1, 5.0, 0.02, 11),
    ],
)
def test_the_next_one_is_due_as_soon_as_its_share_allows(every: str | int, cost: float, pace: float, due: int) -> None:
    rhythm = MemoryRhythm(every, 4)
    assert rhythm.due == (6 if every == 3 else 5)
    for _ in range(LAST):
        rhythm.go_on(10, cost, pace, kept=True)
    assert rhythm.due == due
    assert every != "auto" or cost <= MEMORY_SHARE * pace * (rhythm.due - 10) * 1.0001
    rhythm.go_on(10, cost, pace, kept=False)
    assert rhythm.due == math.inf, "no node keeps any"


def test_one_measurement_that_a_busy_machine_spoilt_counts_for_nothing() -> None:
    rhythm, steps = MemoryRhythm("auto", 0), []
    for cost, pace in [(0.0, 0.02), *[(0.0075, 0.02)] * 3, (0.9, 5.0), (0.0075, 0.02)]:
        rhythm.go_on(10, cost, pace, kept=True)
        steps.append(rhythm.due - 10)
    assert steps == [1, 4, 4, 50, 50, 50]
    assert MemoryRhythm(0, 7).due == math.inf


def test_a_first_measurement_that_is_spoilt_does_not_postpone_the_next_ones_for_long() -> None:
    rhythm, steps = MemoryRhythm("auto", 0), []
    for cost in (0.35, 0.00074, 0.00074):
        rhythm.go_on(10, cost, 0.02, kept=True)
        steps.append(rhythm.due - 10)
    assert steps == [175, 1, 5], "a tenth of the time, then the lower of two costs, then MEMORY_SHARE"


@pytest.mark.parametrize(
    ("every", "costs", "due"),
    [
        (None, [[0.1, 1.0, 0.5]], 70),  # 30 s are the least
        (None, [[0.1, 1.0, 0.5], [0.6, 1.0, 9.0]], 130),  # 0.6 s are 1 % of 60 s, of steps as the first rank has them
        (None, [[0.1, 8.0, 0.5], [0.6, 1.0, 9.0]], 170),  # 8 s of writing are a tenth of 80 s
        (None, [[0.0, 0.0, 100.0]], 11),
        (4, [[9.0, 9.0, 0.5]], 12),
    ],
)
def test_the_disk_is_busy_for_little_of_the_time(every: int | None, costs: list[list[float]], due: int) -> None:
    rhythm = DiskRhythm(every, 0)
    assert rhythm.due == (every or 1)
    rhythm.go_on(10, torch.tensor(costs, dtype=torch.float64))  # type: ignore[arg-type]
    assert rhythm.due == due
    assert DiskRhythm(0, 7).due == math.inf


def test_what_a_snapshot_on_the_disk_costs_is_measured_from_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 102.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    rhythm = DiskRhythm(None, 4)
    monkeypatch.setattr(rhythm, "pace", lambda step: 2.0 / (step - 4))
    rhythm.begin(8)
    assert rhythm.costs(3.0).tolist() == [0.5, 3.0, 0.5]


@pytest.mark.parametrize(("cost", "pace", "every"), [(0.0007, 0.25, 1), (0.0501, 0.25, 57), (0.0, 0.0, 1)])
def test_the_first_check_chooses_at_which_steps_the_others_come(
    cost: float, pace: float, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    context = SimpleNamespace(device=torch.device("cpu"), share=lambda tensor: tensor)
    interval, first = CheckInterval(context, "auto"), UNTIMED + TIMED  # type: ignore[arg-type]
    for step in range(5, 5 + first):
        now += pace if step > 4 + UNTIMED else 9.0  # the first steps take long
        assert interval.is_next(step) == (step == 4 + first)
        assert interval.is_due(step) == (step == 4 + first)
    interval.choose(cost)
    assert interval.every == every
    assert [step for step in range(1, 200) if interval.is_due(step)] == [*range(every, 200, every)]
    assert not any(CheckInterval(context, 0).is_due(step) for step in range(99))  # type: ignore[arg-type]
