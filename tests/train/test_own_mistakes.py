"""Own loops with a mistake, on two processes: each job ends by itself, with a code and a message that say what was wrong.

The mistakes that one process can make are in test_own_runs.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bad_loops
import pytest
from waiting import PATIENCE

SAID = {  # by loop: the exit code under slipway, and what the output contains
    "fewer_batches": (78, "The ranks are out of step"),
    "no_batches_on_one_rank": (76, "rank 1 has ended its loop after 0 steps, and waits for a rank that has not"),
    "broken_off_on_one_rank": (76, "rank 1 has ended its loop after 8 steps, and waits for a rank that has not"),
    "fewer_batches_at_the_end": (76, "rank 1 has ended its loop after 11 steps, and waits for a rank that has not"),
    "batches_on_one_rank": (76, "imed out"),
    "exception_on_one_rank": (1, "KeyError: 'label'"),
    "end_on_one_rank": (1, "the process of rank 1 ends before its loop, at step 7"),
    "no_batches": (0, "has done 0 steps"),
    "validated_on_one_rank": (0, "has done 12 steps"),
    "forked": (0, "has done 12 steps"),
    "other_settings": (78, "Rank 1 differs from rank 0 in save_every (4 instead of 3). Call slipway.resume alike"),
    "no_gradient_on_one_rank": (0, "has done 12 steps"),
}
LAUNCHERS = {
    "slipway": ["slipway", "run", "--nproc-per-node", "2", "--max-restarts", "0"],
    "torchrun": ["torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--standalone"],
}
# These take seconds; the others wait for a limit, or repeat a path through the code.
FOR_EVERY_CHANGE = {("fewer_batches", "slipway"), ("other_settings", "slipway")}


@pytest.mark.parametrize(
    ("loop", "launcher"),
    [
        pytest.param(loop, launcher, marks=[pytest.mark.pull] if (loop, launcher) in FOR_EVERY_CHANGE else [])
        for loop in bad_loops.LOOPS
        for launcher in LAUNCHERS
    ],
)
def test_a_mistake_of_one_rank_ends_the_job_with_a_message(tmp_path: Path, loop: str, launcher: str) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], bad_loops.__file__, loop],
        cwd=tmp_path,
        env={**kept, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * PATIENCE,
    )
    code, said = SAID[loop]
    assert done.returncode == (code if launcher == "slipway" else min(code, 1)), done.stdout
    assert said in done.stdout
