"""`make chaos` itself, on one job; what it is for takes a hundred."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "chaos/chaos.py"


@pytest.mark.timeout(900)  # it is patient
def test_a_job_that_is_harmed_at_random_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    words = (sys.executable, str(PROGRAM), "--seed", "1", "--job", "5")  # of one node
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 × linear" in done.stdout
    assert "SIGKILL standby of node 0 at " in done.stdout
    assert "1 jobs, 2 harms, 1 starts of a node: 0 jobs were wrong" in done.stdout
