"""`slipway trace` on a real job: asked while it trains, and nothing is restarted."""

import gzip
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chrome_traces import check_format
from launchers import Launcher
from stand_in_rules import Rules

Run = Callable[..., Launcher]
# What was so when it looked, in this order.
SAID = (
    r"(slipway: requested; .*\n)?(slipway: all ranks start .*\n)?(slipway: recording 2 steps after step \d+\n)?"
    r"(slipway: recorded; rank 0 collects .*\n)?"
)


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipway", "trace", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_a_running_job_is_traced_and_goes_on(start: Run, tmp_path: Path) -> None:
    size = ("--steps", "1000000", "--log-every", "1", "--save-every", "0", "--eval-every", "0")
    job = start("linear", "--run-dir", "traced", "--nproc-per-node", "2", *size)
    job.wait_for("step 3/")
    for number in (1, 2):  # the second finds a profiler that was used before
        done = ask(tmp_path, "traced", "--steps", "2")
        assert done.returncode == 0, done.stderr + job.text
        assert "of 2 ranks, whose clocks were compared to within" in done.stdout
        assert "communication ms a step" in done.stdout
        assert re.fullmatch(SAID, done.stderr), done.stderr
        files = sorted(tmp_path.glob("traced/traces/step-*/trace.json.gz"))
        assert len(files) == number
        check_format(json.loads(gzip.decompress(files[-1].read_bytes()))["traceEvents"])
    seen = int(re.findall(r"step (\d+)/", job.text)[-1])
    job.wait_for(f"step {seen + 1}/")
    job.signal(signal.SIGINT)
    assert job.end() == 79, job.text
    assert "attempt 2" not in job.text
    assert ask(tmp_path, "traced").returncode == 78


@pytest.mark.core
def test_a_script_of_ones_own_is_told_of_the_helper(start: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    job = start("run", "--run-dir", "own", "--nproc-per-node", "1", "train.py", **rules.variables())
    job.wait_for("here")
    done = ask(tmp_path, "own")
    assert done.returncode == 78
    assert "from slipway.train import trace" in done.stderr
    job.signal(signal.SIGINT)
    job.end()
