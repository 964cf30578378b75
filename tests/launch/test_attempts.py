"""A job that failed is started again where that helps, and not where it does not, beyond the rows of tests/faults/table.py.

Agent and workers are those without torch.
"""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import wait_until

from slipway.protocol.files import read_json

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

    def find() -> dict[str, Any] | None:
        for run in folder.glob("runs/*/run.json"):
            told = read_json(run.parent / f"node-0/heartbeat/rank-{rank}.json")
            if read_json(run)["attempt"] == attempt and told.get("phase") == "train":
                return told
        return None

    return wait_until(find, f"rank {rank} to train in attempt {attempt}")


@pytest.mark.pull
def test_a_job_that_advances_outlives_more_kills_than_it_may_restart_without_progress(
    slipway: Run, rules: Rules, tmp_path: Path
) -> None:
    killed = rules.variables(Rule("signal SIGKILL", step=6), Rule("signal SIGKILL", step=12, attempt=2))
    job = slipway("run", "--max-restarts", "1", *SHORT, NPROC_PER_NODE="1", **killed)
    assert job.process.returncode == 0, job.text
    assert "starting again in" not in job.text, "no pause after progress"
    tries = outcome(tmp_path)["attempts"]
    assert [(tried["number"], tried["after"]) for tried in tries] == [(1, 5), (2, 10), (3, 20)]
    assert tries[-1]["reached"] == 20


FAILS_ONCE = """
print("resume", os.environ["SLIPWAY_RESUME"], "shared", os.environ["SLIPWAY_SHARED_RUN_DIR"], flush=True)
if not os.path.exists("failed"):
    open("failed", "w").close()
    sys.exit(3)
"""


@pytest.mark.pull
def test_a_script_is_started_again_only_where_its_user_asks_for_it(slipway: Run, rules: Rules, tmp_path: Path) -> None:
    script, more = write(tmp_path, FAILS_ONCE), {"NPROC_PER_NODE": "1", **rules.variables(pause=0.1)}
    job = slipway(script, **more)
    assert job.process.returncode == 1, job.text
    assert any("--max-restarts is 0" in line for line in job.closing), job.closing
    (tmp_path / "failed").unlink()
    job = slipway("run", "--max-restarts", "1", script, **more)
    assert job.process.returncode == 0, job.text
    said = [line.strip() for line in job.lines if line.startswith("resume")]
    assert said == ["resume none shared 1", "resume auto shared 1"]


@pytest.mark.pull
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 79)])
def test_a_stop_between_two_attempts_ends_the_job_without_another(
    start: Run, rules: Rules, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    script = write(tmp_path, "sys.exit(3)")
    job = start(script, SLIPWAY_MAX_RESTARTS="9", NPROC_PER_NODE="1", **rules.variables(pause=600))
    job.wait_for("starting again in 600 s")
    job.signal(number)
    assert job.end() == code, job.text
    assert job.text.count("script: run directory") == 1, "the second was never begun"
    assert any(f"{number.name} came before attempt 2" in line for line in job.closing), job.closing
    assert len(outcome(tmp_path)["attempts"]) == 2
