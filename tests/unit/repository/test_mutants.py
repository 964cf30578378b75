"""What `make mutants` tries, and with which tests; the trials themselves take half an hour."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tests/mutants"))

from changes import find_changes, is_worth_a_run, mutated  # noqa: E402
from trial import TESTS, file_of, file_of_tests  # noqa: E402

TEXT = """@dataclass(frozen=True)
class Seat:
    rank: int | None = 1


def count(seats: list[Seat] | None, *, most: int = 3) -> int | None:
    return len(seats) + most if seats else None


def is_lost(outcome: Outcome, own: list[Seat]) -> bool:
    return outcome.word == Word.LOST and outcome.rank is not None and outcome.seats is not own
"""


@pytest.mark.parametrize("name", TESTS)
def test_each_file_is_there_with_tests_that_should_notice(name: str) -> None:
    files = [file_of(name), *map(file_of_tests, TESTS[name])]
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        ("+ most", "- most", True),
        ("most: int = 3", "most: int = 4", True),
        ("rank: int | None", "rank: int & None", False),
        ("frozen=True", "frozen=False", False),
        ("*, most", "+, most", False),
        ("if seats", 'if seats is "x"', False),
        ("+ most", "+  most", False),
        ("word == Word.LOST", "word is Word.LOST", False),
        ("rank is not None", "rank != None", False),
        ("rank is not None", "rank is None", True),
    ],
)
def test_what_no_test_can_or_need_notice_is_left_out(before: str, after: str, worth: bool) -> None:
    assert is_worth_a_run(TEXT, TEXT.replace(before, after)) is worth


def test_a_sample_is_the_same_each_time_and_a_part_of_all() -> None:
    every, sample = find_changes("seats", TEXT, None), find_changes("seats", TEXT, 5)
    assert len(sample) == 5 < len(every)
    assert [mutated(TEXT, change.mutation) for change in sample] == [
        mutated(TEXT, change.mutation) for change in find_changes("seats", TEXT, 5)
    ]
    assert {change.line for change in sample} <= {change.line for change in every} == {1, 3, 6, 7, 11}
