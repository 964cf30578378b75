"""What outlives the workers: a job goes on from the memory that its launcher holds, and from the disk where that is no good."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import PATIENCE, Launcher

from slipway.protocol.memory import PAGE

Start = Callable[..., Launcher]
JOB = (
    "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32", "--batch-size", "4", "--eval-samples", "16",
    "--sample-tokens", "0", "--precision", "fp32", "--log-every", "1", "--save-every", "100",
)  # fmt: skip
IN_MEMORY = re.compile(r"going on from step-0*(\d+), in memory")


def kill_rank(folder: Path, rank: int, node: int = 0) -> None:
    [file] = folder.glob(f"**/node-{node}/heartbeat/rank-{rank}.json")
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def steps_of(folder: Path) -> list[int]:
    [file] = folder.glob("**/metrics.jsonl")
    return [line["step"] for line in map(json.loads, file.read_text().splitlines()) if "lr" in line]


def buffers(launcher: Launcher) -> list[Path]:
    """What its buffers are called in /proc."""
    folder = Path(f"/proc/{launcher.process.pid}/fd")
    return [file for file in folder.iterdir() if "slipway-memory" in str(file.readlink())]


@pytest.mark.core
def test_a_rank_that_is_killed_costs_the_steps_since_the_last_snapshot_in_memory(start: Start, tmp_path: Path) -> None:
    job = start("run", *JOB, "--steps", "60", "--memory-every", "1", NPROC_PER_NODE="2")
    job.wait_for("step 30/")
    kill_rank(tmp_path, 1)
    assert job.end() == 0, job.text
    before, _, after = job.text.partition("starting again")
    reached = int(re.findall(r"step (\d+)/", before)[-1])
    [step] = map(int, IN_MEMORY.findall(after))
    assert reached - 1 <= step, "at most the step that was under way is made again"
    assert f"from the snapshot in memory of step {step}: attempt 2" in after.splitlines()[0]
    assert steps_of(tmp_path) == list(range(1, 61))
    assert len(list(tmp_path.glob("runs/*/snapshots/step-*"))) == 1, "disks have what they would have had"


@pytest.mark.core
def test_memory_that_is_damaged_is_named_and_the_disk_taken(start: Start, tmp_path: Path) -> None:
    job = start("run", *JOB, "--steps", "300", "--save-every", "10", "--memory-every", "1", NPROC_PER_NODE="2")
    job.wait_for("step 35/")
    job.signal(signal.SIGSTOP)
    for rank in (0, 1):
        kill_rank(tmp_path, rank)
    time.sleep(0.5)
    for buffer in buffers(job):
        with buffer.open("r+b") as file:
            file.seek(PAGE)
            file.write(os.urandom(64))
    job.signal(signal.SIGCONT)
    assert job.end() == 0, job.text
    assert "skipping the damaged snapshot in memory of step " in job.text
    assert re.search(r"going on from /\S+/snapshots/step-000000[1-9]0\n", job.text), job.text
    assert steps_of(tmp_path) == list(range(1, 301))


def test_after_two_attempts_that_failed_from_one_in_memory_the_disks_is_taken(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILS_AT_25)
    words = (*JOB, "--steps", "40", "--save-every", "10", "--memory-every", "12", "--max-restarts", "9")
    # Workers that are forked read no sitecustomize.py of their own.
    job = start("run", *words, NPROC_PER_NODE="2", PYTHONPATH=str(tmp_path), SLIPWAY_WARM="0")
    job.end(2 * PATIENCE)
    assert IN_MEMORY.findall(job.text) == ["24", "24"], job.text
    assert "passing over the snapshot in memory of step 24: 2 attempts from it failed" in job.text
    assert "/snapshots/step-00000020\n" in job.text.partition("passing over")[2]


FAILS_AT_25 = """
import os, sys

if os.environ.get("RANK") == "0" and "slipway.warm_workers" in " ".join(sys.orig_argv):
    from slipway.train.worker.heartbeat import Heartbeat

    real = Heartbeat.beat

    def beat(self, phase, step, steps):
        real(self, phase, step, steps)
        if phase == "train" and step == 25:
            raise RuntimeError("boom")

    Heartbeat.beat = beat
"""


@pytest.mark.parametrize("words", [("--max-restarts", "0"), ("--memory-every", "0")])
def test_there_is_none_where_nobody_would_go_on_from_it(start: Start, words: tuple[str, ...]) -> None:
    job = start("run", *JOB, "--steps", "100000", *words, NPROC_PER_NODE="1")
    job.wait_for("step 5/")
    assert all(buffer.stat().st_size == 0 for buffer in buffers(job))
    assert len(buffers(job)) == (0 if "--max-restarts" in words else 2)
    job.signal(signal.SIGTERM)
    assert job.end() == 75, job.text


def test_a_node_that_comes_in_place_of_a_lost_one_gets_all_from_the_memory_of_the_other(
    node: Start, tmp_path: Path
) -> None:
    words = ("run", *JOB, "--steps", "60", "--memory-every", "1", "--max-restarts", "3", "--runs")
    jobs = [node(rank, 2, *words, f"disk-{rank}") for rank in (0, 1)]
    jobs[0].wait_for("step 20/")
    os.killpg(jobs[1].process.pid, signal.SIGKILL)
    jobs[0].wait_for("waiting for nodes again")
    jobs[1] = node(1, 2, *words, "an-empty-one")
    assert [job.end(2 * PATIENCE) for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    [step] = map(int, IN_MEMORY.findall(jobs[0].text))
    assert step >= 19
    assert steps_of(tmp_path / "disk-0") == list(range(1, 61))


def test_with_all_nodes_lost_the_disk_is_what_is_left(node: Start, tmp_path: Path) -> None:
    words = ("run", *JOB, "--steps", "100000", "--save-every", "10", "--memory-every", "1", "--runs")
    jobs = [node(rank, 2, *words, f"disk-{rank}") for rank in (0, 1)]
    jobs[0].wait_for("step 35/")
    for job in jobs:
        os.killpg(job.process.pid, signal.SIGKILL)
    jobs = [node(rank, 2, *words, f"disk-{rank}", "--resume", "auto") for rank in (0, 1)]
    jobs[0].wait_for("going on from ")
    jobs[0].wait_for("/snapshots/step-")
    assert not IN_MEMORY.search(jobs[0].text), jobs[0].text
    jobs[0].signal(signal.SIGTERM)
    assert [job.end() for job in jobs] == [75, 75], jobs[0].text
