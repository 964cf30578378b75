"""`slipway selftest`, as anybody types it: the same proof in the image and here. And a burn of the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_jobs import run_slipway
from ground import bare_environment

MINUTES = 5  # that it may take on eight GPUs and on two idle cores; a busy machine gets three times that


@pytest.mark.timeout(MINUTES * 180 + 60)
def test_every_row_that_can_be_tried_here_is_ok(device: torch.device, tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "selftest", "--json"], cwd=tmp_path, stdin=subprocess.DEVNULL,
        env={**bare_environment(), "PYTHONWARNINGS": "ignore", "TMPDIR": str(tmp_path), **hidden},
        capture_output=True, text=True, errors="replace", timeout=MINUTES * 180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row["level"] for row in json.loads(done.stdout)["rows"]}
    assert "failed" not in rows.values()
    if device.type == "cuda":
        assert {what for what, level in rows.items() if level == "skipped"} <= {"all-reduce"}, "on one GPU alone"
    assert list(tmp_path.glob("slipway-selftest-*")) == []


def test_a_burn_finds_nothing(device: torch.device, tmp_path: Path) -> None:
    check = run_slipway(tmp_path, ["check", "--local", "--burn", "3"], device, {"COLUMNS": "200"})
    [row] = [line for line in check.text.splitlines() if " burn " in line and "results right" in line]
    assert row.split()[0] == "ok", check.text
    assert ("GPU 0" if device.type == "cuda" else "CPU") in row
