"""The page on DDP begins with plain PyTorch that anybody can run, and shows what it prints."""

import re
import subprocess
from pathlib import Path

import pytest
from blocks import ROOT, read_blocks
from test_blocks import run

PAGE = ROOT / "docs/ddp.md"
BEGINNING = PAGE.read_text().partition("\n## ")[0]
SCRIPT = BEGINNING.partition("<<'EOF'\n")[2].partition("EOF\n")[0]


@pytest.mark.core
def test_it_begins_with_twenty_lines_that_need_no_slipway() -> None:
    assert 18 <= len(SCRIPT.splitlines()) <= 22
    assert "slipway" not in SCRIPT
    assert "entrypoint/" not in BEGINNING, "a function of ours"
    anchors = re.findall(r"\]\(#([\w-]+)\)", BEGINNING)
    assert len(anchors) == 5


def test_it_prints_what_the_page_shows_with_one_process_and_with_two(tmp_path: Path) -> None:
    first = read_blocks(PAGE)[0]
    assert SCRIPT in first.text
    done: subprocess.CompletedProcess[str] = run(
        ["bash", "-euo", "pipefail", "-c", first.text], tmp_path, HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout
    shown = BEGINNING.partition("```text\n")[2].partition("```")[0].splitlines()
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) == sorted(shown)
    assert len(shown) == 3
