"""Ranks as people read them."""

from typing import Any

import pytest

from slipway.protocol.printable import rank_ranges


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0, 1), "0, 1"),
        ((0, 5, 6, 7), "0, 5-7"),
        (
            [rank for pair in range(0, 45, 3) for rank in (pair, pair + 1)],
            "0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22, 24, 25, 27, 28 and 10 more",
        ),
        (
            [0, *(rank for pair in range(2, 35, 3) for rank in (pair, pair + 1))],
            "0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23, 24, 26, 27, 29 and 3 more",
        ),
        ((0, 1, 2), "0-2"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38"),
        ((3, 6, 7), "3, 6, 7"),
        ((5, 4, 3, 9), "3-5, 9"),
        ((), ""),
        (range(0, 100, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38 and 30 more"),
        (range(4096), "0-4095"),
    ],
)
def test_ranks_are_written_short(ranks: Any, text: str) -> None:
    assert rank_ranges(ranks) == text
