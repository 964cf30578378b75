"""The page on fault tolerance: every fault of the table is on it, and the tests that it names are there."""

import re
from pathlib import Path

import pytest
from table import FAULTS, PARTINGS

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fault-tolerance.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))
ROWS = {fault.name for fault in (*FAULTS, *PARTINGS)}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def test_every_fault_of_the_table_is_on_the_page() -> None:
    """Some as "`SIGTERM ×1, training` and six more": those whose names begin alike."""
    together = set[str]()
    for first, more in re.findall(r"`([^`\n]+, )[^`\n]+` and (\w+) more", PAGE):
        alike = {row for row in ROWS if row.startswith(first)}
        assert len(alike) == 1 + NUMBERS.index(more), first
        together |= alike
    assert sorted(ROWS - NAMED - together) == []


def test_every_row_of_what_somebody_else_does_names_its_test() -> None:
    rows = PAGE.partition("### What somebody else does")[2].partition("###")[0].strip().splitlines()
    cells = [row.strip("| ").split(" | ")[2] for row in rows if row.startswith("|")][2:]
    assert len(cells) > 30
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if not name.startswith("test_")}
    assert all("`" in cell for cell in cells)
    assert sorted(named - ROWS) == []


def test_all_tests_that_the_page_names_are_there() -> None:
    there = {
        name for file in ROOT.glob("tests/*/**/test_*.py") for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert sorted({name for name in NAMED if re.fullmatch(r"test_\w+", name)} - there) == []


@pytest.mark.parametrize(("test", "file"), sorted(set(re.findall(r"\[`(test_\w+)`\]\(([^)#]+)\)", PAGE))))
def test_the_tests_that_the_page_names_are_there(test: str, file: str) -> None:
    assert f"def {test}(" in (ROOT / "docs" / file).read_text()
