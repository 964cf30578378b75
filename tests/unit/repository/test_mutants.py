"""What `make mutants` tries, and with which tests; the trials themselves take half an hour."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "tests/mutants"))

from trial import TESTS, file_of, file_of_tests  # noqa: E402


@pytest.mark.parametrize("name", TESTS)
def test_each_file_is_there_with_tests_that_should_notice(name: str) -> None:
    files = [file_of(name), *map(file_of_tests, TESTS[name])]
    assert [file for file in files if not (ROOT / file).is_file()] == []
