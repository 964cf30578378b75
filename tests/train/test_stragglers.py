"""A rank that makes all others wait is named, and nobody else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from simulated_time import StepClock
from torch import nn
from training_jobs import Run

from slipway.train.observe import own_time
from slipway.train.observe.own_time import Causes, HostClock, OwnTime
from slipway.train.observe.stragglers import MARGIN, STAYS, WINDOWS, WORTH, Straggler, Stragglers, find_straggler, level
from slipway.train.worker.context import Context

Start = Callable[..., Run]
CPU = torch.device("cpu")
OPTIONS = ("--dataset-size", 240, "--batch-size", 12, "--steps", 90, "--save-every", 0, "--log-every", 10)


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


def test_who_was_named_stays_so_until_he_is_hardly_slower() -> None:
    before, margin = Straggler(1, 0.3, 0.3), (MARGIN + STAYS) / 2
    assert find_straggler([[1.0, margin]] * WINDOWS) is None
    assert find_straggler([[1.0, margin]] * WINDOWS, before=before)
    assert find_straggler([[margin, 1.0]] * WINDOWS, before=before) is None
    assert find_straggler([[1.0, STAYS]] * WINDOWS, before=before) is None


def test_who_costs_hardly_anything_of_a_step_is_not_worth_a_word() -> None:
    assert find_straggler([[1.0, 1.5]] * WINDOWS, step=0.49 / WORTH)
    assert find_straggler([[1.0, 1.5]] * WINDOWS, step=0.51 / WORTH) is None, "all wait for the network"


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


@pytest.fixture
def clock() -> StepClock:
    """Goes on as it is told."""
    return StepClock()


def step(watch: OwnTime, net: nn.Module, clock: StepClock, waited: float, parts: int = 1) -> None:
    """A step whose forward takes 1 s a part and whose optimizer takes 4."""
    watch.begin()
    for part in range(parts):
        if part == parts - 1:
            watch.begin_last_part()
        clock.time += 1
        net(torch.ones(2, 3)).sum().backward()
    clock.time += waited
    watch.go_on()
    clock.time += 4
    watch.end()


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


@pytest.fixture
def watch(net: nn.Module, clock: StepClock) -> OwnTime:
    made = OwnTime(net.parameters(), CPU, clock)
    net(torch.ones(2, 3)).sum().backward()
    made.settle(all_of_them=False)
    return made


def test_what_lies_between_the_last_gradient_and_the_others_is_not_ones_own(
    watch: OwnTime, net: nn.Module, clock: StepClock
) -> None:
    for waited in (10.0, 100.0, 1000.0, 10_000.0):
        step(watch, net, clock, waited, parts=2)
    taken = watch.take()
    assert (taken.own, taken.data) == (2 + 4, 0.0)
    assert taken.steady == 2 + 4, "nothing of it was spent on a processor"
    assert math.isnan(watch.take().own), "each step counts once, and the newest not yet"
    step(watch, net, clock, 10.0)
    watch.drop()
    step(watch, net, clock, 10.0)
    step(watch, net, clock, 10.0)
    assert math.isnan(watch.take().own), "the first behind a drop has no step before it"


def test_waiting_for_data_is_ones_own_as_far_as_there_was_nothing_else_to_do(
    watch: OwnTime, net: nn.Module, clock: StepClock
) -> None:
    for gap in (0.0, 3.0, 3.0, 0.0, 0.0):  # a GPU that has still to do does not wait, while its host does
        clock.time += gap
        watch.data = 3.0
        step(watch, net, clock, 50.0)
    taken = watch.take()
    assert taken.own == 1 + 4 + 3
    assert taken.data == pytest.approx((3 + 3 + 0) / 3)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_step_whose_last_gradient_was_not_seen_does_not_count(
    net: nn.Sequential, clock: StepClock, all_of_them: bool
) -> None:
    watch = OwnTime(net.parameters(), CPU, clock)
    net(torch.ones(2, 3)).sum().backward()
    watch.settle(all_of_them=all_of_them)
    for _ in range(3):
        step(watch, net[1], clock, 10.0)  # the first layer is not used
    assert math.isnan(watch.take().own) != all_of_them


def test_without_parameters_nothing_is_timed(net: nn.Module, clock: StepClock) -> None:
    watch = OwnTime([], CPU, clock)
    watch.settle(all_of_them=True)
    for _ in range(3):
        step(watch, net, clock, 5.0)
    assert math.isnan(watch.take().own)


# What a kernel told a thread that worked, waited for a processor beside others, and slept: the time, the thread's own time on a
# processor, and what /proc/thread-self/schedstat had.
RECORDED = {
    "begun": (57.10, 1.00, b"1001000000 2000000 40\n"),
    "worked": (57.40, 1.25, b"1251000000 52000000 44\n"),
    "slept": (57.90, 1.25, b"1251000000 52000000 45\n"),
}


def test_time_on_a_processor_and_waiting_for_one_is_not_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = {}
    for name, (time, ran, schedule) in RECORDED.items():
        monkeypatch.setattr(own_time.time, "perf_counter", lambda time=time: time)
        monkeypatch.setattr(own_time.time, "clock_gettime", lambda _, ran=ran: ran)
        monkeypatch.setattr(own_time.os, "pread", lambda *_, schedule=schedule: schedule)
        moments[name] = HostClock().now()
    clock, (begun, worked, slept) = HostClock(), moments.values()
    assert clock.seconds(begun, worked) == pytest.approx(0.3)
    assert clock.steady(begun, worked) == pytest.approx(0), "0.25 s on a processor, and 0.05 s before it got one"
    assert clock.steady(worked, slept) == clock.seconds(worked, slept) == pytest.approx(0.5)
    assert clock.steady(begun, worked._replace(ran=9.0)) == 0, "two clocks need not agree"


def test_this_kernel_tells_how_long_a_thread_was_on_a_processor() -> None:
    clock = HostClock()
    begun = clock.now()
    sum(range(100_000))
    worked = clock.now()
    assert worked.ran > begun.ran
    assert worked.time > begun.time
    assert worked.waited >= begun.waited >= 0


@pytest.mark.parametrize("odd", [b"a b c", b"", b"1"])
def test_a_kernel_that_does_not_tell_how_long_a_thread_waits_leaves_that_out(
    odd: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_time.os, "pread", lambda *_: odd)
    assert HostClock().now().waited == 0
    monkeypatch.setattr(own_time.os, "open", raise_missing)
    assert HostClock().now().waited == 0


def raise_missing(*_: object) -> None:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("own", "steady", "rank"),
    [
        ([1.0, 1.2], [0.0, 0.2], 1),  # it sleeps
        ([1.3, 1.0, 1.0], [0.0, 0.0, 0.0], None),  # its processor is slow
        ([1.3, 1.2, 1.0], [0.0, 0.2, 0.0], 1),  # the others' processors differ, too
        ([1.0, 1.2], [1.0, 1.2], 1),  # a GPU
    ],
)
def test_how_fast_processors_are_is_levelled(own: list[float], steady: list[float], rank: int | None) -> None:
    found = find_straggler([level(own, steady)] * WINDOWS)
    assert (found.rank if found else None) == rank


def test_a_slow_processor_counts_once_it_lasts(clock: StepClock) -> None:
    watch = Stragglers(cast(Context, SimpleNamespace(device=CPU)), None, OwnTime([], CPU, clock))
    slow, equal = ([1.0, 1.3], [0.0, 0.0]), ([1.0, 1.0], [0.0, 0.0])
    for seconds, window, rank in (
        (0, slow, None),
        (29, slow, None),
        (31, slow, 1),
        (32, equal, None),
        (70, slow, None),
    ):
        clock.time = seconds
        watch._windows.extend([window] * WINDOWS)
        found = watch._find(1.3)
        assert (found.rank if found else None) == rank, seconds


def test_causes_are_told_by_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now, files = [0.0], dict[str, str]()
    monkeypatch.setattr(own_time, "read_kernel_file", lambda path: files.get(path.name, ""))
    monkeypatch.setattr(own_time, "cgroup_folders", lambda *_: [Path("/inner"), Path("/outer")])
    causes = Causes(CPU, 3, lambda: now[0])
    assert causes.text() == ""
    for seconds, waited, throttled in ((0, 0, 0), (10, 1e9, 10), (20, 4e9, 50)):
        now[0] = seconds
        files |= {"schedstat": f"1 {waited:.0f} 1", "cpu.stat": f"nr_periods {seconds * 10}\nnr_throttled {throttled}"}
        causes.sample(2.5)
    text = causes.text()
    assert "25% of the time it waits for its data" in text
    assert "20% of the time it waits for a processor that others use" in text
    assert "25% of the time its quota of" in text
    causes.forget()
    assert causes.text() == ""


@pytest.mark.parametrize(
    "odd", ["", "x", "1 y 2", "a b\nnr_periods x\nnr_throttled 3", "nr_throttled\n\nnr_periods 1 2"]
)
def test_a_kernel_that_tells_nothing_ends_no_job(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "read_kernel_file", lambda _: odd)
    causes = Causes(CPU, 2, lambda: 0.0)
    causes.sample(0.0)
    causes.sample(0.0)
    assert causes.text() == ""


@pytest.mark.pull
@pytest.mark.parametrize(
    ("ranks", "slower", "more", "known"),
    [
        (2, (1, "part"), (), ""),
        (3, (0, "part"), ("--accumulate", 2), ""),
        (2, (0, "data"), ("--workers", 1), "50% of the time it waits for its data"),
        (2, (1, "processor"), (), ""),
        (2, (1, "part"), ("--find-unused-parameters",), ""),
        (2, (1, "part"), ("--static-graph",), ""),
    ],
)
def test_the_rank_that_all_wait_for_is_named_and_nobody_else(
    ranks: int, slower: tuple[int, str], more: tuple[object, ...], known: str, job: Start
) -> None:
    rank, what = slower
    run = job("linear", *OPTIONS, *more, processes=ranks, simulated=1.0, slower=[rank, what, 1.0])
    assert run.exit_code == 0, run.output
    assert f"warning: all other ranks wait: rank {rank} is " in run.output
    assert run.output.count("warning: all other ranks wait") == 1, "once in ten minutes"
    assert "slower than the others, on node 0 (" in run.output
    assert known in run.output
    named = [row["slow_rank"] for row in run.metrics if "slow_rank" in row]
    assert named, "the lines have it"
    assert set(named) == {rank}
    beats = [beat(run, each) for each in range(ranks)]
    assert beats[0]["waited"][str(rank)] > 0
    assert [each["slow"] for each in beats] == [None] * ranks, "it is over"


@pytest.mark.pull
def test_a_short_while_is_worth_no_warning(job: Start) -> None:
    run = job("linear", *OPTIONS, simulated=0.1, slower=[1, "part", 0.1])
    assert any("slow_rank" in row for row in run.metrics)
    assert "warning" not in run.output


@pytest.mark.pull
def test_it_changes_no_bit(job: Start) -> None:
    timed = job("linear", *OPTIONS[:-4], "--save-every", 30, folders=("timed",))
    assert beat(timed, 0)["own"]
    plain = job("linear", *OPTIONS[:-4], "--save-every", 30, folders=("plain",), untimed=True)
    assert not beat(plain, 0)["own"]
    for name, tensor in plain.tensors("model", "optimizer", "ranks").items():
        assert torch.equal(tensor, timed.tensors("model", "optimizer", "ranks")[name]), name


def test_a_process_alone_waits_for_nobody(job: Start) -> None:
    run = job("linear", *OPTIONS, processes=1)
    assert run.exit_code == 0, run.output
    assert "own" not in beat(run, 0)


def beat(run: Run, rank: int) -> dict[str, Any]:
    """The last heartbeat of a rank."""
    found: dict[str, Any] = json.loads((run.folder / f"node-0/heartbeat/rank-{rank}.json").read_text())
    return found
