"""The table of docs/hangs.md has what the programs of tests/hangs are made for: each program, its culprit and the line."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "hangs"))

from hangs import FRAMEWORKS, read_cases

PAGE = (Path(__file__).parents[3] / "docs/hangs.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
CASES = [*read_cases(), *read_cases(FRAMEWORKS)]


def test_each_program_has_a_row_with_its_culprit_and_line() -> None:
    assert [case.name for case in CASES if case.name not in ROWS] == []
    for case in CASES:
        text = ROWS[case.name]
        assert case.culprit is None or f"rank {case.culprit} has not reached" in text, case.name
        assert not case.lines or any(f"{case.file.name}:{number} " in text for number in case.lines), case.name


def test_as_many_are_counted() -> None:
    assert f"right in {len(CASES)} of {len(CASES)}" in PAGE
    assert f"{len(read_cases())} in plain PyTorch" in PAGE
    assert f"and {len(read_cases(FRAMEWORKS))} on Hugging Face's" in PAGE
