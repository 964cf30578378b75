"""Lines that ranks share are shown once; nothing is lost, and no rank's lines change places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.inspect import collapse as module
from slipway.inspect.collapse import NEAR, Collapse, Shared, collapse
from slipway.inspect.logs import PARENTS, Line


def line(rank: int, text: str, time: float = 0.0, attempt: int = 1, node: int = 0) -> Line:
    return Line(attempt, time, 0, node, rank, "", text)


def shown(*lines: Line) -> list[str]:
    return [f"{shared.who}: {shared.line.text}" for shared in collapse(lines) if shared]


def test_a_line_that_ranks_share_stands_there_once() -> None:
    assert shown(*(line(rank, "hello") for rank in (0, 1, 2, 3, 7))) == ["ranks 0-3, 7: hello"]


def test_what_differs_stays_separate() -> None:
    assert shown(line(0, "loss 1"), line(1, "loss 2"), line(0, "end"), line(1, "end")) == [
        "rank 0: loss 1", "rank 1: loss 2", "ranks 0, 1: end",
    ]  # fmt: skip


def test_lines_far_apart_or_of_two_attempts_are_not_the_same() -> None:
    assert shown(line(0, "x"), line(1, "x", NEAR)) == ["ranks 0, 1: x"]
    assert shown(line(0, "x"), line(1, "x", NEAR + 0.1)) == ["rank 0: x", "rank 1: x"]
    assert shown(line(0, "x"), line(1, "x", attempt=2)) == ["rank 0: x", "rank 1: x"]


def test_what_a_rank_says_twice_stands_there_twice() -> None:
    ticks = [line(rank, "tick", time) for time in (0.0, 0.1, 0.2) for rank in (0, 1)]
    assert shown(*ticks) == ["ranks 0, 1: tick"] * 3
    assert shown(line(0, "tick"), line(0, "tick"), line(1, "tick")) == ["ranks 0, 1: tick", "rank 0: tick"]


def test_a_line_of_its_own_moves_in_front_of_those_that_are_shared() -> None:
    first = [line(0, "I am 0"), line(0, "hello"), line(0, "go")]
    assert shown(*first, line(1, "I am 1"), line(1, "hello"), line(1, "go")) == [
        "rank 0: I am 0", "rank 1: I am 1", "ranks 0, 1: hello", "ranks 0, 1: go",
    ]  # fmt: skip


def test_lines_that_two_ranks_say_the_other_way_round_are_not_both_shared() -> None:
    assert shown(line(0, "a"), line(0, "b"), line(1, "b"), line(1, "a")) == ["rank 1: b", "ranks 0, 1: a", "rank 0: b"]


def test_what_torchrun_says_is_shared_among_nodes_and_not_with_ranks() -> None:
    parent, other = PARENTS["torchrun"], PARENTS["spawn"]
    said = [line(0, "x"), line(parent, "x", node=0), line(parent, "x", node=1), line(other, "x", node=2)]
    assert shown(*said) == ["rank 0: x", "torchrun on nodes 0, 1: x", "spawn on node 2: x"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10_000)
    waiting = Collapse()
    given = [shared for number in range(1000) for shared in waiting.take(line(0, f"line {number}"))]
    assert 950 < len(given) < 1000
    assert len([*given, *waiting.settle(float("inf"))]) == 1000
    assert [*waiting.take(line(0, "x")), *waiting.take(line(1, "x"))] == []
    assert [shared.who for shared in waiting.settle(float("inf"))] == ["ranks 0, 1"]


@pytest.mark.parametrize(("now", "given"), [(NEAR, 0), (NEAR + 0.1, 1), (-NEAR - 0.1, 1), (float("inf"), 1)])
def test_where_nothing_more_comes_lines_wait_no_longer_than_others_may_take(now: float, given: int) -> None:
    waiting = Collapse()
    assert list(waiting.take(line(0, "x"))) == []
    assert len(list(waiting.settle(now))) == given


LINES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde"), st.sampled_from((0.0, 0.5, NEAR))), max_size=60)


@given(LINES, st.sampled_from((0, 1, module.DEEPEST)))
def test_nothing_is_lost_and_each_rank_keeps_its_order(said: list[tuple[int, str, float]], deepest: int) -> None:
    lines, now = [], 0.0
    for rank, text, passed in said:
        now += passed
        lines.append(line(rank, text, now))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DEEPEST", deepest)
        out = [shared for shared in collapse(lines) if shared]
    for rank in range(4):
        assert [one.line.text for one in out if rank in one.places] == [one.text for one in lines if one.rank == rank]
    assert all(len(set(one.places)) == len(one.places) for one in out)
    assert sum(len(one.places) for one in out) == len(lines)


def test_lines_that_are_out_keep_no_others_in_memory() -> None:
    waiting, given = Collapse(), list[Shared]()
    for number in range(100):
        given += waiting.take(line(0, f"line {number}", number * 10.0))
    assert len(given) == 99
    assert len(waiting._alike) == len(waiting._waiting) == len(waiting._arrived) == 1
