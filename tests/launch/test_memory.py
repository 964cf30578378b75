"""What outlives the workers: a job goes on from the memory that its launcher holds, and from the disk where that is no good."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import wait_until

from slipway.protocol.memory import newest_in

Start = Callable[..., Launcher]
JOB = (
    "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32", "--batch-size", "4", "--eval-samples", "16",
    "--sample-tokens", "0", "--precision", "fp32", "--log-every", "1", "--save-every", "100",
)  # fmt: skip
IN_MEMORY = re.compile(r"resuming from step-0*(\d+), in memory")


def process_of(folder: Path, rank: int) -> int:
    """The process of a rank."""
    [file] = folder.glob(f"**/heartbeat/rank-{rank}.json")
    pid: int = json.loads(file.read_text())["pid"]
    return pid


def steps_of(folder: Path) -> list[int]:
    [file] = folder.glob("**/metrics.jsonl")
    return [line["step"] for line in map(json.loads, file.read_text().splitlines()) if "lr" in line]


def buffers(launcher: Launcher) -> list[Path]:
    """What its buffers are called in /proc."""
    folder = Path(f"/proc/{launcher.process.pid}/fd")
    return [file for file in folder.iterdir() if "slipway-memory" in str(file.readlink())]


def wait_for_memory(launcher: Launcher, step: int) -> None:
    """Return once a launcher's buffers hold the snapshot of a step: a thread finishes it beside training."""

    def newest() -> int:
        files = [os.open(path, os.O_RDONLY) for path in buffers(launcher)]
        found = newest_in(files)
        for file in files:
            os.close(file)
        return found.step if found else -1

    wait_until(lambda: newest() == step, lambda: f"step {step} in memory:\n{launcher.text}")


@pytest.mark.core
def test_a_rank_that_is_killed_costs_the_steps_since_the_last_snapshot_in_memory(
    start: Start, rules: Rules, tmp_path: Path
) -> None:
    held = Rule("hold", step=31, rank=1)
    killed = rules.variables(held, Rule("signal SIGKILL", step=31, rank=1), torch=True)
    job = start("run", *JOB, "--steps", "60", "--memory-every", "1", NPROC_PER_NODE="2", **killed)
    rules.wait_for(held, job)
    wait_for_memory(job, 30)
    rules.let_go(held)
    assert job.end() == 0, job.text
    after = job.text.partition("starting again")[2]
    assert IN_MEMORY.findall(after) == ["30"], "the step that was under way is made again, and no other"
    assert "from the snapshot in memory of step 30: attempt 2" in after.splitlines()[0]
    assert steps_of(tmp_path) == list(range(1, 61))
    assert len(list(tmp_path.glob("runs/*/snapshots/step-*"))) == 1, "disks have what they would have had"
