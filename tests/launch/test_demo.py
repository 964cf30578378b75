"""`slipway demo`: the table of both launchers, and the line of the rank that hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE


@pytest.mark.pull
def test_demo_compares_both_launchers_and_names_the_line_of_a_hang(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    # A job that the demo is started in has no say in the demo's own jobs.
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "demo"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("start to the first step", "kill of a rank to the next step"):
        assert re.search(rf"^{row} +[\d.]+ s +[\d.]+ s$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^steps that had to be repeated +\d+ +\d+$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"hang: rank 1 .* rank 1 is at demo\.py:\d+ read_sample\(\)", done.stdout), done.stdout
    assert "exit code   76" in done.stdout
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == []  # nothing is left
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
