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


@pytest.mark.parametrize(("test", "file"), sorted(set(re.findall(r"\[`(test_\w+)`\]\(([^)#]+)\)", PAGE))))
def test_the_tests_that_the_page_names_are_there(test: str, file: str) -> None:
    assert f"def {test}(" in (ROOT / "docs" / file).read_text()
