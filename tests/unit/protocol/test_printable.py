"""Text that is safe to print, and ranks as people read them."""

from typing import Any

import pytest

from slipway.protocol.printable import counted, last_line, listed, one_line, printable, rank_ranges


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        (12, "12"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Müller 東京 ∑", "Müller 東京 ∑"),
        ("a no-break\u00a0space", "a no-break\u00a0space"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hcleared", "cleared"),
        ("an escape\x1b alone", "an escape\ufffd alone"),
        ("\x00\x07\x08 \x0b\x0c\r\x1f \x7f\x80\x9f", "\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd"),
        ("turned \u202egnp.exe and \u2066isolated\u2069", "turned \ufffdgnp.exe and \ufffdisolated\ufffd"),
        ("marks \u061c\u200e\u200f and \u2028", "marks \ufffd\ufffd\ufffd and \ufffd"),
        ("caf\udce9.png", "caf\\xe9.png"),  # not UTF-8, as Python reads it from a disk
        ("\udc80 to \udcff", "\\x80 to \\xff"),
        ("\udc7f, \udd00 and \ud800", "\ufffd, \ufffd and \ufffd"),  # no bytes
    ],
)
def test_nothing_in_a_text_does_anything_to_a_terminal(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_text_is_shown_on_one_line() -> None:
    assert one_line("a\nb\tc\x1b[31m\r d") == "a b c\ufffd d"


@pytest.mark.parametrize(
    ("names", "most", "shown"),
    [
        ([], 2, ""),
        (["a", "b"], 2, "a, b"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (["\x1b[1ma", 1], 1, "a and 1 more"),
        (list(range(1501)), 1, "0 and 1,500 more"),
    ],
)
def test_of_many_names_the_first_are_shown(names: list[object], most: int, shown: str) -> None:
    assert listed(names, most) == shown


@pytest.mark.parametrize(
    ("lines", "last"), [([], ""), (["", "  "], ""), (["first", " the end \n", " ", ""], "the end"), (["one"], "one")]
)
def test_the_last_line_is_the_last_one_with_text(lines: list[str], last: str) -> None:
    assert last_line(iter(lines)) == last


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


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "document", "1 document"),
        (0, "document", "0 documents"),
        (2000, "process", "2,000 processes"),
        (1, "process", "1 process"),
        (2, "batch", "2 batches"),
    ],
)
def test_one_thing_is_no_several(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
