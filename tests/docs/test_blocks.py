"""Every shell block of the documentation runs as printed, in an empty folder, page by page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import read_blocks

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if any(not block.needs for block in read_blocks(page)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    script = "\n".join(block.script() for block in read_blocks(page) if not block.needs)
    environ = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-x", "-c", script], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=590,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
