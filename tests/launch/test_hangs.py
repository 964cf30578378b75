"""Scripts of a user's own that hang, told by rank and line. What only seems to hang: tests/unit/launch/hangs/test_watch.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import HANGS_A_WHILE, PYTHON, Launcher
from stand_in_rules import Rules

sys.path.insert(0, str(Path(__file__).parents[1] / "hangs"))

from hangs import Case, read_cases, run_case

Run = Callable[..., Launcher]
HANG = ("--nproc-per-node", "2", "--hang-seconds", "6")
CASES = {case.name: case for case in read_cases()}
CHOSEN = (
    "skipped_collective",
    "data_loader_worker_is_stuck",
    "stopped",
    "other_order",
    "monitored_barrier",
    "endless_in_c",
    "ddp_epochs_differ",
    "chain_of_groups",
)


@pytest.mark.any_torch
@pytest.mark.parametrize("case", [CASES[name] for name in CHOSEN], ids=CHOSEN)
def test_the_culprit_and_its_line_are_told(case: Case) -> None:
    told = run_case(case, PYTHON)
    assert told.rank, told.text
    assert told.line, told.text
    assert told.code == 76


@pytest.mark.any_torch
def test_a_hang_is_told_and_left_alone_by_default(start: Run, tmp_path: Path) -> None:
    (tmp_path / "a_while.py").write_text(HANGS_A_WHILE)
    os.mkfifo(tmp_path / "go")
    job = start("run", *HANG, "a_while.py")
    job.wait_for("rank 1 (node 0) has not reached all_reduce #2; rank 0 has been waiting since")
    shown = subprocess.run(
        [sys.executable, "-m", "slipway", "stacks"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    assert "rank 1 (node 0) is at a_while.py:7 <module>()" in shown.stdout
    assert "rank 0 (node 0) is at a_while.py:8 <module>(); waits in all_reduce #2" in shown.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "slipway", "status"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "  hang        rank 1 (node 0) has not reached all_reduce #2" in shown.stdout
    assert "rank  collectives  per second  cores  last line" in shown.stdout
    (tmp_path / "go").write_text("")
    assert job.end() == 0, job.text
    assert job.text.count("went on") == 2
    assert "progress has resumed" in job.text


@pytest.mark.any_torch
def test_a_hang_over_two_nodes_is_told_by_node_0(node: Run, tmp_path: Path) -> None:
    # Its own way to end is no reason of its own: it was asked to.
    handler = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))"
    (tmp_path / "stuck.py").write_text(handler + HANGS_A_WHILE)
    os.mkfifo(tmp_path / "go")
    words = ("run", "--nproc-per-node", "1", "--hang-seconds", "6", "--on-hang", "end", "stuck.py")
    nodes = [node(rank, 2, *words) for rank in range(2)]
    assert [one.end() for one in nodes] == [76, 76]
    line = "hang: rank 1 (node 1) has not reached all_reduce #2; rank 0 has been waiting since"
    assert f"slipway: {line}" in nodes[0].text
    assert f"slipway: {line}" not in nodes[1].text
    assert line in nodes[1].text  # in the verdict
    for outcome in tmp_path.glob("**/outcome.json"):
        stacks = json.loads(outcome.read_text())["first"]["stacks"]
        assert stacks[0] == "  rank 1 (node 1) is at stuck.py:7 <module>()"
    assert not [*tmp_path.glob("**/hang.json")]


def test_a_python_of_another_environment_is_looked_at_from_outside(start: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import time\ndef load():\n    time.sleep(10_000)\nprint('here', flush=True)\nload()"
    )
    words = ("run", "--nproc-per-node", "1", "--no-python", str(Path(sys.executable).resolve()), "elsewhere.py")
    job = start(*words, **rules.variables())
    job.wait_for("here")
    shown = subprocess.run(
        [sys.executable, "-m", "slipway", "stacks"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "rank 0 (node 0) is at elsewhere.py:3 load(), and has no watcher" in shown.stdout, shown.stderr
    job.signal(signal.SIGINT)
    assert job.end() == 79, job.text


def test_nobody_is_watched_where_that_is_switched_off(start: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "import os\nprint(sorted(n for n in os.environ if 'WATCH' in n or 'TORCH_FR' in n), flush=True)\nopen('go').read()"
    )
    os.mkfifo(tmp_path / "go")
    job = start("run", "--nproc-per-node", "1", "alone.py", SLIPWAY_WATCH="0", **rules.variables())
    job.wait_for("['SLIPWAY_WATCH']")
    shown = subprocess.run(
        [sys.executable, "-m", "slipway", "stacks"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 78
    assert "SLIPWAY_WATCH=0" in shown.stderr
    (tmp_path / "go").write_text("")
    assert job.end() == 0
