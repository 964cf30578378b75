"""What a terminal shows of a text in a row: bars are cut, lines are folded, whatever its width."""

import os
import pty
import termios

import pytest

from slipway.launch.attempt.terminal import USUAL, columns_of, cut, fold, fold_error, rows_taken

RED, PLAIN = "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("12% |██  | 3/4", 80, "12% |██  | 3/4"),
        ("12% |██  | 3/4", 6, "12% |█"),
        (f"{RED}12%{PLAIN} |██|", 5, f"{RED}12%{PLAIN} |"),
        (f"{RED}a long one{PLAIN}", 3, f"{RED}a l{PLAIN}"),
        ("漢字かな", 5, "漢字"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("first row\nsecond row", 6, "first \nsecond"),
    ],
)
def test_a_bar_is_cut_where_its_row_ends(text: str, columns: int, shown: str) -> None:
    assert cut(text.encode(), columns).decode() == shown


@pytest.mark.parametrize(
    ("text", "columns", "rows"), [("", 80, 1), ("x" * 79, 80, 1), ("x" * 79, 60, 2), ("x" * 79 + "\ny", 39, 4)]
)
def test_a_bar_that_was_drawn_takes_more_rows_once_the_terminal_is_narrower(text: str, columns: int, rows: int) -> None:
    assert rows_taken(text.encode(), columns) == rows


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("step 1  loss 2.0", 40, "[0:0] step 1  loss 2.0"),
        ("step 1  loss 2.0  lr 0.1", 20, "[0:0] step 1  loss\n      2.0  lr 0.1"),
        ("x" * 30, 20, f"[0:0] {'x' * 30}"),
        ("", 4, "[0:0] "),
        (" " * 30, 20, f"[0:0] {' ' * 30}"),
    ],
)
def test_a_line_is_folded_between_words_and_set_in(text: str, columns: int, shown: str) -> None:
    assert fold("[0:0] ", text, columns) == shown


def test_the_width_is_the_terminals_own_at_any_moment() -> None:
    ours, theirs = pty.openpty()
    try:
        assert columns_of(theirs) == USUAL, "a terminal that has no size yet"
        for columns in (60, 120):
            termios.tcsetwinsize(theirs, (24, columns))
            assert columns_of(theirs) == columns
    finally:
        os.close(ours)
        os.close(theirs)
    assert columns_of(ours) == USUAL


def test_an_error_is_folded_but_what_to_type_stays_in_one_row() -> None:
    command = "slipway run " + " ".join(f"--option-{number} value" for number in range(8))
    rows = fold_error("slipway: ", f"{'word ' * 30}is wrong. Type: {command}", 60).split("\n")
    assert rows[-1] == f"         Type: {command}"
    assert all(len(row) <= 60 and row.startswith("         word") for row in rows[1:-2])
    assert fold_error("slipway: ", "short. Type: slipway run", 60) == "slipway: short. Type: slipway run"
    assert all(len(row) <= 60 for row in fold_error("slipway: ", "word " * 30, 60).split("\n"))


@pytest.mark.parametrize("columns", [-1, 0, 1, 9])
def test_a_terminal_too_narrow_for_words_gets_them_all(columns: int) -> None:
    assert fold_error("slipway: ", "There is none. Type: slipway run", columns).split() == [
        "slipway:", "There", "is", "none.", "Type:", "slipway", "run",
    ]  # fmt: skip
