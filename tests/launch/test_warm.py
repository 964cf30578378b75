"""Attempts after the first are forked from a process that the first one leaves behind, and are like those that are started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launchers import PATIENCE, Launcher

from slipway.launch.process_tree import descendants, lives, send_signal, state_of

Run = Callable[..., Launcher]
# Python runs it first of all in every process that starts, and not in one that is forked.
SITE = """
import os
if os.environ.get("LOCAL_RANK"):
    open(f"{os.environ['SEEN']}/{os.environ['SLIPWAY_ATTEMPT']}-{os.environ['RANK']}", "w").close()
"""
GPT = (
    "gpt",
    "--preset",
    "tiny",
    "--steps",
    "24",
    "--save-every",
    "8",
    "--log-every",
    "1",
    "--sample-tokens",
    "0",
    "--eval-every",
    "0",
)
SCRIPT = """
import os, signal, sys, time
print("begun", os.environ["RANK"], "torch" in sys.modules, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
time.sleep(4)
if os.environ["SLIPWAY_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def seen(tmp_path: Path) -> dict[str, str]:
    """Variables with which each worker's Python notes its attempt and rank as it starts."""
    folder = tmp_path / "seen"
    folder.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": str(tmp_path / "site"), "SEEN": str(folder), "NPROC_PER_NODE": "2"}


def started(seen: dict[str, str]) -> list[str]:
    """Attempt and rank of each worker that was started, and not forked."""
    return sorted(file.name for file in Path(seen["SEEN"]).iterdir())


def wait_for(ask: Callable[[], Any], job: Launcher) -> Any:
    """What is answered first."""
    until = time.monotonic() + PATIENCE
    while not (answer := ask()):
        assert time.monotonic() < until, job.text
        time.sleep(0.05)
    return answer


def parked(job: Launcher) -> int:
    """The process id of the one that is left behind, once it is there."""

    def find() -> int | None:
        for pid in descendants(job.process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if "slipway.parked" in words:
                return pid
        return None

    return wait_for(find, job)


def kill_rank(job: Launcher, folder: Path, rank: int = 1) -> None:
    """SIGKILL for a worker that trains."""
    [file] = folder.glob(f"runs/*/node-0/heartbeat/rank-{rank}.json")
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def weights(runs: Path) -> dict[str, bytes]:
    """Every tensor of the last snapshot, as files."""
    [last] = runs.glob("*/snapshots/step-00000024")
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


@pytest.mark.core
@pytest.mark.parametrize(
    ("processes", "threads"), [("2", "1"), ("1", "2")]
)  # with a pool of threads a used parent shows
def test_a_forked_attempt_ends_bit_for_bit_as_an_undisturbed_run(
    slipway: Run, start: Run, seen: dict[str, str], tmp_path: Path, processes: str, threads: str
) -> None:
    variables = {"OMP_NUM_THREADS": threads, "NPROC_PER_NODE": processes}
    calm = slipway(*GPT, "--runs", "calm", **variables)
    assert calm.process.returncode == 0, calm.text
    job = start(*GPT, "--runs", "runs", **seen | variables)
    job.wait_for("step 10/")
    pid = parked(job)
    kill_rank(job, tmp_path, int(processes) - 1)
    job.wait_for("going on from")
    assert parked(job) == pid, "it lasts"
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1, "no pool of threads"
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(job.process.pid)]
    workers = [name for name in names if b"slipway.warm_workers\0slipway.train.workloads.gpt" in name]
    assert len(workers) == int(processes), names
    assert job.end() == 0, job.text
    assert started(seen) == [f"1-{rank}" for rank in range(int(processes))], "those of the second attempt were forked"
    assert weights(tmp_path / "runs") == weights(tmp_path / "calm")
    assert not lives(pid)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP, None], ids=["killed", "frozen", "not wanted"])
def test_without_it_an_attempt_starts_as_the_first_did(
    start: Run, seen: dict[str, str], tmp_path: Path, harm: signal.Signals | None
) -> None:
    job = start(*GPT, SLIPWAY_WARM="0" if harm is None else "1", **seen)
    if harm is not None:
        pid = parked(job)
    job.wait_for("step 10/")
    if harm is None:
        assert not any(
            b"slipway.parked" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(job.process.pid)
        )
    else:
        os.kill(pid, harm)
        time.sleep(1.5)
        assert "SIGKILL" not in job.text, "the attempt goes on without it"
    kill_rank(job, tmp_path)
    job.wait_for("going on from")
    if harm is not None:
        assert parked(job) != pid, "there is a new one"
    assert job.end() == 0, job.text
    assert started(seen) == ["1-0", "1-1", "2-0", "2-1"]


def test_a_script_gets_an_interpreter_of_its_own(start: Run, seen: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    job = start("run", "--max-restarts", "1", "own.py", **seen)
    assert job.end() == 0, job.text
    assert started(seen) == ["1-0", "1-1", "2-0", "2-1"]
    begun = [line.split()[-2:] for line in job.lines if "begun" in line]
    assert begun == [["False", "True"]] * 4, job.text


@pytest.mark.parametrize("attempt", [1, 2])
def test_nothing_is_left_of_a_killed_launcher_though_all_is_frozen(start: Run, tmp_path: Path, attempt: int) -> None:
    job = start(*GPT, "--steps", "100000", NPROC_PER_NODE="2")
    pid = parked(job)
    job.wait_for("step 10/")
    if attempt == 2:
        kill_rank(job, tmp_path)
        job.wait_for("going on from")
    below = descendants(job.process.pid)
    assert pid in below
    send_signal([pid], signal.SIGSTOP)
    wait_for(lambda: state_of(pid) == "T", job)
    job.signal(signal.SIGKILL)
    wait_for(lambda: not any(map(lives, below)), job)


SEEDS = """
import os, numpy, random, torch
from slipway.warm_workers import seed_anew
for _ in range(2):
    if not os.fork():
        seed_anew()
        print(torch.rand(1).item(), numpy.random.rand(), random.random(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_forked_workers_have_random_numbers_of_their_own() -> None:
    told = subprocess.run([sys.executable, "-c", SEEDS], capture_output=True, text=True, timeout=PATIENCE, check=True)
    first, second = (line.split() for line in told.stdout.splitlines())
    assert all(one != other for one, other in zip(first, second, strict=True)), told.stdout
