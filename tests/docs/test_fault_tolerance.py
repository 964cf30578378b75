"""The page on fault tolerance: every fault of the table is on it, and the tests that it names are there."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fault-tolerance.md").read_text()
TABLE = (ROOT / "tests/faults/table.py").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_every_fault_of_the_table_is_on_the_page() -> None:
    faults = re.findall(r'(?:Fault|Parting)\("([^"]+)"', TABLE)
    faults += [f"SIGKILL {moment}" for moment in re.findall(r'dies\("([^"]+)"', TABLE)]
    assert len(faults) > 50
    assert sorted(set(faults) - NAMED) == []


def test_every_row_of_what_somebody_else_does_names_its_test() -> None:
    rows = PAGE.partition("### What somebody else does")[2].partition("###")[0].strip().splitlines()
    cells = [row.strip("| ").split(" | ")[2] for row in rows if row.startswith("|")][2:]
    assert len(cells) > 30
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if not name.startswith("test_")}
    assert all("`" in cell for cell in cells)
    assert sorted(name for name in named if f'"{name}"' not in TABLE) == []


def test_all_tests_that_the_page_names_are_there() -> None:
    there = {
        name for file in ROOT.glob("tests/*/test_*.py") for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert sorted({name for name in NAMED if re.fullmatch(r"test_\w+", name)} - there) == []


@pytest.mark.parametrize(("test", "file"), sorted(set(re.findall(r"\[`(test_\w+)`\]\(([^)#]+)\)", PAGE))))
def test_the_tests_that_the_page_names_are_there(test: str, file: str) -> None:
    assert f"def {test}(" in (ROOT / "docs" / file).read_text()
