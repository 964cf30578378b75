"""The page on DDP begins with plain PyTorch that anybody can run, and shows what it prints."""

import re
from pathlib import Path

import pytest
from blocks import ROOT, read_blocks
from test_blocks import run_script

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


def test_it_prints_what_the_page_shows_with_one_process_and_with_two(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = read_blocks(PAGE)[0]
    assert SCRIPT in first.text
    done = run_script(first.text, tmp_path, tmp_path_factory)
    assert done.returncode == 0, done.stdout
    shown = BEGINNING.partition("```text\n")[2].partition("```")[0].splitlines()
    lines = re.findall(r"rank \d of \d: .*?weight \d\.\d{4}", done.stdout)  # two ranks may share a line
    assert sorted(lines) == sorted(shown)
    assert len(shown) == 3
