"""`make help` names every target once, describes those that a newcomer needs, and fits on a terminal."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEEDED = ["run", "demo", "setup", "test", "image", "lint", "docs"]
TARGETS = re.findall(r"(?m)^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text())


def make_help(*words: str) -> str:
    """What `make help` prints."""
    command = ["make", "--no-print-directory", "help", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_help_fits_on_a_screen_and_names_every_target_once() -> None:
    shown = make_help()
    first, groups, last = shown.split("\n\n")
    assert re.findall(r"(?m)^  ([a-z]\S*)", first) == NEEDED
    named = re.sub(r"(?m)^[A-Z][\w ]+:", "", groups).split()
    assert sorted([*NEEDED, *named, "help"]) == sorted(TARGETS)
    assert "ARGS=all" in last
    assert len(shown.splitlines()) <= 24
    assert [line for line in shown.splitlines() if len(line) > 80] == []
