"""What outlives the workers: a job goes on from the memory that its launcher holds, and from the disk where that is no good."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import PATIENCE, wait_until

from slipway.process.tree import lives
from slipway.protocol.memory import PAGE, newest_in

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


@pytest.mark.pull
def test_memory_that_is_damaged_is_named_and_the_disk_taken(start: Start, rules: Rules, tmp_path: Path) -> None:
    held, words = Rule("hold", step=35), (*JOB, "--steps", "60", "--save-every", "10", "--memory-every", "1")
    job = start("run", *words, NPROC_PER_NODE="2", **rules.variables(held, torch=True))
    rules.wait_for(held, job)
    wait_for_memory(job, 34)
    wait_until(lambda: [*tmp_path.glob("runs/*/snapshots/step-00000030")], "the snapshot of step 30 on the disk")
    job.signal(signal.SIGSTOP)
    pids = [process_of(tmp_path, rank) for rank in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(lives, pids)), "the workers to end")
    for buffer in buffers(job):
        with buffer.open("r+b") as file:
            file.seek(PAGE)
            file.write(bytes(range(64)))
    job.signal(signal.SIGCONT)
    assert job.end() == 0, job.text
    assert "skipping the damaged snapshot in memory of step 34" in job.text
    assert re.search(r"resuming from /\S+/snapshots/step-00000030\n", job.text), job.text
    assert steps_of(tmp_path) == list(range(1, 61))


def test_after_two_attempts_that_failed_from_one_in_memory_the_disks_is_taken(
    start: Start, rules: Rules, tmp_path: Path
) -> None:
    fails = [Rule("raise boom", step=25, attempt=attempt) for attempt in (1, 2, 3)]
    words = (*JOB, "--steps", "40", "--save-every", "10", "--memory-every", "12", "--max-restarts", "9")
    job = start("run", *words, NPROC_PER_NODE="2", **rules.variables(*fails, torch=True, pause=0.1))
    assert job.end(2 * PATIENCE) == 0, job.text
    assert IN_MEMORY.findall(job.text) == ["24", "24"], job.text
    assert "skipping the snapshot in memory of step 24: 2 attempts that resumed from it failed" in job.text
    assert "/snapshots/step-00000020\n" in job.text.partition("skipping the snapshot in memory")[2]
    assert steps_of(tmp_path) == list(range(1, 41))


@pytest.mark.pull
@pytest.mark.parametrize("words", [("--max-restarts", "0"), ("--memory-every", "0")])
def test_there_is_none_where_nobody_would_go_on_from_it(start: Start, rules: Rules, words: tuple[str, ...]) -> None:
    held = Rule("hold")
    job = start("run", *JOB, "--steps", "20", *words, NPROC_PER_NODE="1", **rules.variables(held))
    rules.wait_for(held, job)
    assert all(buffer.stat().st_size == 0 for buffer in buffers(job))
    assert len(buffers(job)) == (0 if "--max-restarts" in words else 2)
    rules.let_go(held)
    assert job.end() == 0, job.text


@pytest.mark.pull
def test_a_node_that_comes_in_place_of_a_lost_one_gets_all_from_the_memory_of_the_other(
    node: Start, rules: Rules, tmp_path: Path
) -> None:
    held = Rule("hold", step=20)
    words = ("run", *JOB, "--steps", "30", "--memory-every", "1", "--max-restarts", "3", "--runs")
    more = rules.variables(held, pause=0.1)
    jobs = [node(rank, 2, *words, f"disk-{rank}", **more) for rank in (0, 1)]
    rules.wait_for(held, jobs[0])
    os.killpg(jobs[1].process.pid, signal.SIGKILL)
    jobs[0].wait_for("waiting for nodes again")
    jobs[1] = node(1, 2, *words, "an-empty-one", **more)
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert IN_MEMORY.findall(jobs[0].text) == ["19"], jobs[0].text


@pytest.mark.pull
def test_with_all_nodes_lost_the_disk_is_what_is_left(node: Start, rules: Rules, tmp_path: Path) -> None:
    held = Rule("hold", step=35)
    words = ("run", *JOB, "--steps", "40", "--save-every", "10", "--memory-every", "1", "--runs")
    jobs = [node(rank, 2, *words, f"disk-{rank}", **rules.variables(held)) for rank in (0, 1)]
    rules.wait_for(held, jobs[0])
    for job in jobs:
        os.killpg(job.process.pid, signal.SIGKILL)
    more = rules.variables()
    jobs = [node(rank, 2, *words, f"disk-{rank}", "--resume", "auto", **more) for rank in (0, 1)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert re.search(r"resuming from /\S+/snapshots/step-00000030\n", jobs[0].text), jobs[0].text
    assert not IN_MEMORY.search(jobs[0].text), jobs[0].text
