"""`make help` lists every target once, those that a newcomer needs first, and fits on a terminal."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_help_lists_every_target_in_groups_and_four_first() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    first, *groups = shown.split("\n\n")
    assert re.findall(r"(?m)^  ([a-z]\S*)", first) == ["run", "setup", "test", "image"]
    assert [group.splitlines()[0][-1] for group in groups] == [":"] * len(groups)
    listed = re.findall(r"(?m)^  ([a-z]\S*)", shown)
    told = re.findall(r"(?m)^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text())
    assert sorted([*listed, "help"]) == sorted(told)
    assert [line for line in shown.splitlines() if len(line) > 80] == []
