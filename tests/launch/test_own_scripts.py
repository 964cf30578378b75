"""A user's own program runs unchanged, and the end of it is told truly."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from limits import small_memory
from stand_in_rules import Rules
from waiting import wait_until

from slipway.process.tree import lives

Run = Callable[..., Launcher]


@pytest.mark.any_torch
@pytest.mark.core
def test_a_plain_script_runs_unchanged_with_its_own_flags(slipway: Run, script: Path) -> None:
    job = slipway("run", "--nproc-per-node", "2", "own.py", "--its-own=x", "--flags")
    assert job.end() == 0, job.text
    assert job.text.count("sum 2 x True default-signals True") == 2
    assert "1 node × 2 CPU processes = 2 processes (inside your script WORLD_SIZE is 2)" in job.text


# Words that torchrun would take for its own, or change: it abbreviates options, and fills in placeholders.
WORDS = [
    "--r",
    "16",
    "--n=2",
    "--no",
    "--mo",
    "0.8",
    "--nnodes",
    "4",
    "-m",
    "x",
    "-h",
    "--version",
    "--",
    "-1",
    "",
    "@a",
    "$$",
]
# Started twice, where it is asked for: the second attempt is forked from a process that stayed behind.
SHOWS_ITS_WORDS = """#!/usr/bin/env python3
import json, os, sys
print("words", json.dumps(sys.argv[1:]), flush=True)
sys.exit(3 if os.environ.get("SLIPWAY_ATTEMPT") == os.environ.get("FAILS_IN") else 0)
"""


# torchrun itself gets the first; the others differ in what the launcher makes of them.
@pytest.mark.parametrize(
    ("form", "variables"),
    [
        pytest.param(["shows.py"], {"FAILS_IN": "1", "SLIPWAY_MAX_RESTARTS": "1"}, marks=pytest.mark.any_torch),
        pytest.param(["run", "-m", "shows"], {}, marks=pytest.mark.pull),
        pytest.param(["run", "--no-python", "./shows.py"], {}, marks=pytest.mark.pull),
        (["run", "--run-dir=one", "shows.py"], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}),
    ],
)  # fmt: skip
def test_every_word_after_its_name_is_the_programs_own(
    slipway: Run, rules: Rules, tmp_path: Path, form: list[str], variables: dict[str, str]
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS_ITS_WORDS)
    (tmp_path / "shows.py").chmod(0o755)
    stand_ins = {} if "FAILS_IN" in variables else rules.variables()
    job = slipway(*form, *WORDS, NPROC_PER_NODE="1", **variables, **stand_ins)
    assert job.end() == 0, job.text
    assert re.findall("(?m)^words (.*)$", job.text) == [json.dumps(WORDS)] * (2 if "FAILS_IN" in variables else 1), (
        job.text
    )


ENDS = {
    "exit-3": ("rank 1", "exit code 3"),
    "exit-75": ("rank 1", "exit code 75"),
    "raise": ("rank 1", "ValueError: boom"),
    "kill": ("rank 1", "SIGKILL"),
}


@pytest.mark.core
@pytest.mark.parametrize("then", ENDS)
def test_a_failure_is_told_with_its_rank_and_cause_and_becomes_1(
    slipway: Run, plain: Path, rules: Rules, then: str
) -> None:
    job = slipway("plain.py", "--then", then, NPROC_PER_NODE="2", **rules.variables())
    assert job.end() == 1, job.text
    cause = job.closing[2:]
    for word in ENDS[then]:
        assert any(word in line for line in cause), cause
    assert not any("out of memory" in line for line in cause)


@pytest.mark.needs("memory cgroup")
@pytest.mark.parametrize("of_step", [False, True], ids=["of its own cgroup", "of a step's, mounted as enroot does"])
def test_an_out_of_memory_kill_is_told_from_a_kill(slipway: Run, script: Path, of_step: bool) -> None:
    with small_memory(1 << 30, of_step=of_step) as inside:
        job = slipway("own.py", "--then", "eat", before=inside, NPROC_PER_NODE="2")
    assert job.end() == 1, job.text
    assert any("out of memory" in line for line in job.closing), job.closing


@pytest.mark.core
def test_a_script_that_handles_sigterm_gets_it_at_once_and_may_save(start: Run, plain: Path, rules: Rules) -> None:
    job = start("plain.py", "--then", "save", NPROC_PER_NODE="2", **rules.variables())
    job.wait_for("[0:0] waiting")
    job.wait_for("[0:1] waiting")
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    assert (plain.parent / "saved-0").read_text() == "SIGTERM"
    assert (plain.parent / "saved-1").read_text() == "SIGTERM"


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(lives, pids)), f"{pids} to end")


@pytest.mark.core
def test_what_a_script_started_in_a_session_of_its_own_ends_with_a_launcher_that_is_killed(
    start: Run, rules: Rules, tmp_path: Path
) -> None:
    (tmp_path / "starts.py").write_text(
        "import subprocess, time\n"
        'child = subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
        'print(f"child {child.pid} is there", flush=True)\ntime.sleep(1000)\n'
    )
    job = start("starts.py", NPROC_PER_NODE="2", **rules.variables())
    job.wait_for("[0:0] child")
    job.wait_for("[0:1] child")
    children = [int(pid) for pid in re.findall(r"child (\d+) is there", job.text)]
    job.process.kill()
    assert job.end() == -signal.SIGKILL
    wait_until_gone(children)


@pytest.mark.pull
def test_a_reader_that_goes_away_changes_neither_the_job_nor_its_exit_code(
    start: Run, plain: Path, rules: Rules
) -> None:
    job = start(
        "plain.py",
        "--then",
        "exit-3",
        NPROC_PER_NODE="2",
        **rules.variables(),
        before=("sh", "-c", '("$@"; echo $? > code) | true', "sh"),
    )
    job.end()
    code = plain.parent / "code"
    assert wait_until(lambda: code.exists() and code.read_text(), "the exit code") == "1\n"
