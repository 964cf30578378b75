"""A job that failed is started again where that helps, and not where it does not."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launchers import PATIENCE, Launcher

from slipway.launch.process_tree import stat_fields

Run = Callable[..., Launcher]
TINY = ("gpt", "--preset", "tiny", "--log-every", "1")
SHORT = (*TINY, "--steps", "20", "--save-every", "5", "--eval-samples", "16", "--sample-tokens", "0")


def write(tmp_path: Path, body: str, name: str = "script.py") -> str:
    (tmp_path / name).write_text(f"import os, signal, sys, time\n{body}")
    return name


def outcome(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(folder.glob("runs/*/outcome.json")).read_text())
    return found


def beat(folder: Path, rank: int, attempt: int = 1) -> dict[str, Any]:
    """A rank's heartbeat, once it trains in an attempt."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for run in folder.glob("runs/*/run.json"):
            file = run.parent / f"node-0/heartbeat/rank-{rank}.json"
            if json.loads(run.read_text())["attempt"] == attempt and file.exists():
                found: dict[str, Any] = json.loads(file.read_text())
                if found["phase"] == "train":
                    return found
        time.sleep(0.1)
    raise AssertionError(f"rank {rank} never came to train in attempt {attempt}")


def wait_for_snapshot(folder: Path, step: int) -> None:
    """A disk may take longer than a step."""
    until = time.monotonic() + 60
    while not list(folder.glob(f"runs/*/snapshots/step-{step:08}")):
        assert time.monotonic() < until, f"no snapshot of step {step}"
        time.sleep(0.02)


@pytest.mark.core
def test_a_rank_that_is_killed_costs_an_attempt_and_the_run_goes_on_from_its_snapshot(
    start: Run, tmp_path: Path
) -> None:
    job = start(*TINY, "--steps", "30", "--save-every", "10", NPROC_PER_NODE="2")
    job.wait_for("step 12/")
    os.kill(beat(tmp_path, 1)["pid"], signal.SIGKILL)
    assert job.end() == 0, job.text
    assert "step 1/" not in job.text.partition("starting again")[2], "it did not begin anew"
    assert any("finished on 1 node after 2 attempts" in line for line in job.closing), job.closing
    told = outcome(tmp_path)
    assert [attempt["outcome"]["rank"] for attempt in told["attempts"]] == [1, None]
    assert told["attempts"][0]["after"] >= 10
    log = next(tmp_path.glob("runs/*/node-0/logs/rank-0.log")).read_text()
    assert log.count("--- attempt 2, ") == 1
    assert "step 12/" in log.partition("--- attempt 2, ")[0]


def test_three_attempts_without_a_newer_snapshot_end_with_93(start: Run, tmp_path: Path) -> None:
    job = start(*TINY, "--steps", "100000", "--save-every", "100000", NPROC_PER_NODE="1")
    for attempt in (1, 2, 3):
        os.kill(beat(tmp_path, 0, attempt)["pid"], signal.SIGKILL)
        job.wait_for("starting again in 4 s" if attempt == 2 else "SIGKILL")
    assert job.end() == 93, job.text
    assert any("3 attempts left no snapshot at all" in line for line in job.closing), job.closing
    assert [attempt["number"] for attempt in outcome(tmp_path)["attempts"]] == [1, 2, 3]


def test_a_job_that_advances_outlives_more_kills_than_it_may_restart_without_progress(
    start: Run, tmp_path: Path
) -> None:
    job = start("run", "--max-restarts", "1", *SHORT, NPROC_PER_NODE="1")
    for attempt, step in enumerate((6, 12), 1):
        job.wait_for(f"step {step}/")
        wait_for_snapshot(tmp_path, step // 5 * 5)
        os.kill(beat(tmp_path, 0, attempt)["pid"], signal.SIGKILL)
        job.wait_for(f": attempt {attempt + 1}")
    assert job.end() == 0, job.text
    assert "starting again in" not in job.text, "no pause after progress"
    tries = outcome(tmp_path)["attempts"]
    assert [tried["number"] for tried in tries] == [1, 2, 3]
    assert tries[-1]["reached"] == 20


CRASHES = """
import slipway.train.loop.fit as loop
save = loop.save
def crash(training, live=False):
    save(training, live)
    loop.wait_for_writers(training)
    raise ValueError("crashed behind its snapshot")
loop.save = crash
"""


def test_a_crash_loop_ends_though_it_saves_each_time(start: Run, tmp_path: Path) -> None:
    write(tmp_path, f"if 'LOCAL_RANK' in os.environ:{CRASHES}".replace("\n", "\n    "), "sitecustomize.py")
    limits = ("run", "--max-restarts", "1")
    job = start(
        *limits,
        *TINY,
        "--steps",
        "100000",
        "--save-every",
        "1",
        NPROC_PER_NODE="1",
        PYTHONPATH=str(tmp_path),
        SLIPWAY_WARM="0",
    )
    assert job.end() == 1, job.text
    assert any("--max-restarts 1, and 2 failures in a row were without progress" in line for line in job.closing)
    tries = outcome(tmp_path)["attempts"]
    assert [(tried["before"], tried["after"]) for tried in tries] == [(None, 1), (1, 2)]


def test_a_script_that_ran_long_enough_is_started_again_as_if_for_the_first_time(start: Run, tmp_path: Path) -> None:
    body = """
attempt = int(os.environ["SLIPWAY_ATTEMPT"])
until = time.monotonic() + 4
while attempt < 4 and time.monotonic() < until:
    print("works", flush=True); time.sleep(0.2)
sys.exit(3 if attempt < 4 else 0)
"""
    job = start("run", "--max-restarts", "1", "--progress-seconds", "2", write(tmp_path, body), NPROC_PER_NODE="1")
    assert job.end() == 0, job.text
    assert "starting again in" not in job.text
    assert [tried["number"] for tried in outcome(tmp_path)["attempts"]] == [1, 2, 3, 4]


def test_a_failure_before_the_first_step_is_not_tried_again(slipway: Run, tmp_path: Path) -> None:
    write(tmp_path, "if 'LOCAL_RANK' in os.environ: os._exit(3)", "sitecustomize.py")
    job = slipway(*TINY, NPROC_PER_NODE="1", PYTHONPATH=str(tmp_path))
    assert job.end() == 1, job.text
    assert any("before its first step" in line for line in job.closing), job.closing
    assert len(outcome(tmp_path)["attempts"]) == 1


FAILS_ONCE = """
print("resume", os.environ["SLIPWAY_RESUME"], "shared", os.environ["SLIPWAY_SHARED_RUN_DIR"], flush=True)
if not os.path.exists("failed"):
    open("failed", "w").close()
    sys.exit(3)
"""


def test_a_script_is_started_again_only_where_its_user_asks_for_it(slipway: Run, tmp_path: Path) -> None:
    script = write(tmp_path, FAILS_ONCE)
    job = slipway(script, NPROC_PER_NODE="1")
    assert job.end() == 1, job.text
    assert any("--max-restarts is 0" in line for line in job.closing), job.closing
    (tmp_path / "failed").unlink()
    job = slipway("run", "--max-restarts", "1", script, NPROC_PER_NODE="1")
    assert job.end() == 0, job.text
    said = [line.strip() for line in job.lines if line.startswith("resume")]
    assert said == ["resume none shared 1", "resume auto shared 1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 79)])
def test_a_stop_between_two_attempts_ends_at_once(
    start: Run, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    job = start(write(tmp_path, "sys.exit(3)"), SLIPWAY_MAX_RESTARTS="9", NPROC_PER_NODE="1")
    job.wait_for("starting again in 4 s")
    job.signal(number)
    assert job.end() == code, job.text
    assert job.text.count("script: run directory") == 2, "the third was never begun"
    assert any(f"{number.name} came before attempt 3" in line for line in job.closing), job.closing
    assert len(outcome(tmp_path)["attempts"]) == 3


def test_a_stop_is_never_followed_by_another_attempt(start: Run, tmp_path: Path) -> None:
    job = start(write(tmp_path, "print('ready', flush=True)\ntime.sleep(300)"), SLIPWAY_MAX_RESTARTS="9")
    job.wait_for("[0:0] ready")
    job.wait_for("[0:1] ready")
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    assert "starting again" not in job.text


@pytest.mark.core
def test_a_hang_ends_with_the_stacks_of_all_ranks_and_the_name_of_the_one_behind(start: Run, tmp_path: Path) -> None:
    job = start("run", "--hang-seconds", "6", "--max-restarts", "0", *TINY, "--steps", "100000", NPROC_PER_NODE="2")
    job.wait_for("step 3/")
    os.kill(beat(tmp_path, 1)["pid"], signal.SIGSTOP)
    assert job.end() == 76, job.text
    cause = next(line for line in job.closing if "hang: " in line)
    assert "behind: rank 1 (step " in cause
    assert "SIGSTOP" in cause
    assert any("node-0/logs/rank-*.log" in line for line in job.closing), job.closing
    assert "most recent call first" in next(tmp_path.glob("runs/*/node-0/logs/rank-0.log")).read_text()


def test_a_torchrun_that_is_frozen_is_not_waited_for_when_all_is_done(start: Run, tmp_path: Path) -> None:
    job = start(*SHORT, NPROC_PER_NODE="1")
    job.wait_for("step 3/")
    worker = beat(tmp_path, 0)["pid"]
    os.kill(int(stat_fields(worker)[1]), signal.SIGSTOP)
    assert job.end() == 0, job.text
    assert any("finished on 1 node" in line for line in job.closing), job.closing


def test_what_never_took_a_step_may_be_killed_without_a_loss(start: Run, tmp_path: Path) -> None:
    write(tmp_path, "if 'LOCAL_RANK' in os.environ: print('asleep', flush=True); time.sleep(300)", "sitecustomize.py")
    job = start("run", "--grace-seconds", "2", *TINY, NPROC_PER_NODE="1", PYTHONPATH=str(tmp_path))
    job.wait_for("asleep")
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text
    assert any("nothing is lost" in line for line in job.closing), job.closing
