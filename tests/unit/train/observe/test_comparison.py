"""Ranks that computed wrongly are named by what all ranks computed, and what does not repeat itself is not compared."""

import random

import pytest

from slipway.train.observe.comparison import ComparableRanks, Signature, divide, find_wrong_ranks

a, b, c, d = (1, 1), (1, 2), (3, 1), (4, 4)


@pytest.mark.parametrize(
    ("first", "again", "wrong"),
    [
        ([a, b, a], [a, b, a], [1]),
        ([a, b, a], [a, a, a], [1]),  # now and then
        ([a, a, a], [a, b, a], [1]),
        ([b, a, a, a], [c, a, a, a], [0]),
        ([b, a, c, a, a], [b, a, c, a, a], [0, 2]),
        ([a, b], [a, b], []),  # two ranks, each with itself in agreement
        ([a, b], [a, c], [1]),  # one of the two does not repeat itself
        ([a, b], [c, d], None),  # nor does the other: the arithmetic is not repeatable
        ([a], [b], [0]),
        ([a], [a], []),
        ([a, a, b, b], [a, a, b, b], []),
        ([a, b, c], [b, c, d], None),
        ([a, a, b], [c, d, b], None),
    ],
)
def test_a_majority_that_repeats_itself_is_right(
    first: list[Signature], again: list[Signature], wrong: list[int] | None
) -> None:
    assert find_wrong_ranks(first, again) == wrong


def test_ranks_are_divided_by_their_kinds() -> None:
    assert divide([5, 3, 5, 7]) == [ComparableRanks((0, 2)), ComparableRanks((1,)), ComparableRanks((3,))]
    assert [kind.alone for kind in divide([5, 3, 5, 7])] == [False, True, True]


@pytest.mark.parametrize(
    ("ranks", "repeated", "first", "again", "loose"),
    [
        ((0, 1, 2), False, [(1, 7, 7)] * 3, [(1, 7, 7)] * 3, []),
        ((0, 1, 2), False, [(1, 7, 1), (1, 7, 2), (1, 7, 3)], [(1, 7, 4), (1, 7, 5), (1, 7, 3)], [2]),
        ((0, 1, 2), True, [(1, 8, 1), (1, 7, 2), (1, 7, 3)], [(1, 7, 4), (1, 7, 5), (1, 7, 3)], [2]),  # and rank 0 is wrong
        ((0, 1, 2), False, [(1, 8, 8), (1, 7, 7), (1, 7, 7)], [(1, 7, 7)] * 3, []),  # a fault of rank 0
        ((0, 1), False, [(1, 7, 1), (1, 7, 2)], [(1, 7, 3), (1, 7, 4)], [2]),
        ((0, 1), False, [(1, 7, 1), (1, 7, 1)], [(1, 7, 1), (1, 7, 4)], []),
        ((1,), False, [(5, 5, 5), (1, 7, 1)], [(6, 6, 6), (1, 7, 2)], [2]),  # it never repeated itself
        ((1,), True, [(5, 5, 5), (1, 7, 1)], [(5, 5, 5), (1, 7, 2)], []),  # it did, so that this is a fault
    ],
)  # fmt: skip
def test_what_does_not_repeat_itself_is_left_out(
    ranks: tuple[int, ...], repeated: bool, first: list[Signature], again: list[Signature], loose: list[int]
) -> None:
    kind = ComparableRanks(ranks, repeated=repeated)
    assert kind.leave_out(first, again) == loose
    assert kind.loose == {*loose}
    assert kind.leave_out(first, again) == []  # once


def test_a_wrong_result_is_found_beside_results_that_never_repeat() -> None:
    dice = random.Random(5)
    kind = ComparableRanks((0, 1, 2))

    def compute(wrong: int = -1) -> list[Signature]:
        return [(1, 9 if rank == wrong else 7, dice.random(), 7) for rank in range(3)]  # type: ignore[misc]

    first, again = compute(), compute()
    assert kind.differs(first)
    assert kind.leave_out(first, again) == [2]
    for _ in range(20):
        assert not kind.differs(compute(), compute())
    first, again = compute(1), compute(1)
    assert kind.differs(first, again)
    assert kind.leave_out(first, again) == []
    assert find_wrong_ranks(kind.pick(first), kind.pick(again)) == [1]
