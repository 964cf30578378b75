"""Attempts after the first are forked from a process that the first one leaves behind, and are like those that are started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules
from waiting import PATIENCE, wait_until

from slipway.process.tree import lives, send_signal, state_of, trees

Run = Callable[..., Launcher]
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


def standby_of(job: Launcher) -> int:
    """The process id of the one that is left behind, once it is there."""

    def find() -> int | None:
        for pid in trees([job.process.pid])[job.process.pid]:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if "slipway.process.standby" in words:
                return pid
        return None

    return wait_until(find, lambda: f"the process that is left behind:\n{job.text}")


def weights(runs: Path) -> dict[str, bytes]:
    """Every tensor of the last snapshot, as files."""
    [last] = runs.glob("*/snapshots/step-00000024")
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


@pytest.mark.parametrize(
    ("processes", "threads"),
    [pytest.param(2, "1", marks=pytest.mark.pull), (1, "2")],  # with a pool of threads a used parent shows
)
def test_a_forked_attempt_ends_bit_for_bit_as_an_undisturbed_run(
    slipway: Run, start: Run, rules: Rules, tmp_path: Path, processes: int, threads: str
) -> None:
    last, held = processes - 1, Rule("hold", step=10)
    again = Rule("hold", step=15, attempt=2)
    more = {"OMP_NUM_THREADS": threads, "NPROC_PER_NODE": str(processes)}
    calm = slipway(*GPT, "--runs", "calm", **more)
    assert calm.process.returncode == 0, calm.text
    told = rules.variables(held, Rule("signal SIGKILL", step=11, rank=last), again, torch=True)
    job = start(*GPT, "--runs", "runs", **more, **told)
    rules.wait_for(held, job)
    pid = standby_of(job)
    rules.let_go(held)
    rules.wait_for(again, job)
    assert standby_of(job) == pid, "it lasts"
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1, "no pool of threads"
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in trees([job.process.pid])[job.process.pid]]
    workers = [name for name in names if b"slipway.process.warm\0slipway.train.workloads.gpt" in name]
    assert len(workers) == processes, names
    rules.let_go(again)
    assert job.end() == 0, job.text
    assert rules.started == [f"1-{rank}" for rank in range(processes)], "those of the second attempt were forked"
    assert weights(tmp_path / "runs") == weights(tmp_path / "calm")
    wait_until(lambda: not lives(pid), "the end of the process that waited")


@pytest.mark.pull
@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP, None], ids=["killed", "frozen", "not wanted"])
def test_without_it_an_attempt_starts_as_the_first_did(start: Run, rules: Rules, harm: signal.Signals | None) -> None:
    held, again = Rule("hold", step=10), Rule("hold", step=10, attempt=2)
    told = rules.variables(held, Rule("signal SIGKILL", step=11, rank=1), again)
    job = start(*GPT, NPROC_PER_NODE="2", SLIPWAY_WARM="0" if harm is None else "1", **told)
    pid = None if harm is None else standby_of(job)
    rules.wait_for(held, job)
    if pid is None:
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in trees([job.process.pid])[job.process.pid]]
        assert not any(b"slipway.process.standby" in name for name in names)
    else:
        assert harm
        os.kill(pid, harm)
        wait_until(lambda: not lives(pid), "the launcher to end what is frozen")
        assert "SIGKILL" not in job.text, "the attempt goes on without it"
    rules.let_go(held)
    rules.wait_for(again, job)
    if pid is not None:
        assert standby_of(job) != pid, "there is a new one"
    rules.let_go(again)
    assert job.end() == 0, job.text
    assert rules.started == ["1-0", "1-1", "2-0", "2-1"]


WITH_TORCH = """
import os, signal, time
attempt, rank = os.environ["SLIPWAY_ATTEMPT"], os.environ["RANK"]
print("begun", attempt, "torch" in __import__("sys").modules, flush=True)
COLD
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(rank) + 1])
dist.all_reduce(total)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
print("made", attempt, rank, torch.get_num_threads(), total.item(), flush=True)
while not os.path.exists(f"go-{attempt}"):
    time.sleep(0.01)
if attempt != "3" and rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


def prepared(job: Launcher) -> list[int]:
    """The processes that wait for a script's next attempts: children of the launcher that have imported torch, in a session."""
    found = []
    for pid in trees([job.process.pid])[job.process.pid]:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if b"SLIPWAY_WATCHER=standby:" in environ:
            found.append(pid)
    return found


def is_ready(pid: int) -> bool:
    """Whether a process that waits for a script's next attempts has imported torch, and waits in recvmsg(2) on x86-64."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("47 ")


def go_on(job: Launcher, attempt: int, folder: Path) -> None:
    """Let an attempt go on to its end, once all ranks are there."""
    for rank in (0, 1):
        job.wait_for(f"made {attempt} {rank}")
    (folder / f"go-{attempt}").touch()


@pytest.mark.parametrize(
    "torchrun", [pytest.param(False, marks=pytest.mark.pull), pytest.param(True, marks=pytest.mark.any_torch)]
)
def test_a_script_finds_torch_imported_from_the_second_attempt_on(
    start: Run, rules: Rules, tmp_path: Path, torchrun: bool
) -> None:
    (tmp_path / "own.py").write_text(WITH_TORCH.replace("COLD", ""))
    told = {"NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1", **rules.variables(pause=0.1, torch=torchrun)}
    job = start("run", "--max-restarts", "2", "own.py", **told)
    job.wait_for("made 1 0")
    [pid, *_] = wait_until(lambda: prepared(job), "the process that waits")
    wait_until(lambda: is_ready(pid), "that it has imported torch")
    go_on(job, 1, tmp_path)
    job.wait_for("made 2 0")
    assert pid in prepared(job), "it lasts"
    go_on(job, 2, tmp_path)
    go_on(job, 3, tmp_path)
    assert job.end() == 0, job.text
    assert "starts cold" not in job.text
    assert sum("False" in line for line in job.lines if "begun" in line) == 6, job.text
    made = [line.split("made ")[1].split() for line in job.lines if "made " in line]
    assert sorted(made) == [[f"{attempt}", f"{rank}", "1", "3.0"] for attempt in (1, 2, 3) for rank in (0, 1)]
    wait_until(lambda: not lives(pid), "the end of the process that waited")


@pytest.mark.parametrize(
    ("cold", "variables", "why"),
    [
        ("os.environ['MKL_NUM_THREADS'] = '1'", {}, "MKL_NUM_THREADS was set or changed before torch was imported"),
        ("", {"SLIPWAY_WATCH": "0"}, "the attempt before ended before it had imported torch, or was not watched"),
        ("", {"OMP_PROC_BIND": "true"}, "OMP_NUM_THREADS is not set, or OpenMP places its threads itself"),
        ("", {"SLIPWAY_WARM": "0"}, ""),
    ],
)
def test_a_restart_says_once_why_it_is_cold(
    start: Run, rules: Rules, tmp_path: Path, cold: str, variables: dict[str, str], why: str
) -> None:
    (tmp_path / "own.py").write_text(WITH_TORCH.replace("COLD", cold).replace('"3"', '"2"'))
    told = {"NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1", **variables, **rules.variables(pause=0.1)}
    job = start("run", "--max-restarts", "1", "own.py", **told)
    go_on(job, 1, tmp_path)
    go_on(job, 2, tmp_path)
    assert job.end() == 0, job.text
    assert [line.strip() for line in job.lines if "starts cold" in line] == (
        [f"slipway: attempt 2 starts cold: {why}"] if why else []
    )


SCRIPT = """
import os, signal, sys, time
print("begun", os.environ["RANK"], signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["SLIPWAY_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.pull
def test_a_script_gets_an_interpreter_of_its_own(start: Run, rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    job = start("run", "--max-restarts", "1", "own.py", NPROC_PER_NODE="2", **rules.variables(pause=0.1))
    assert standby_of(job)
    job.wait_for("begun 0")
    job.wait_for("begun 1")
    (tmp_path / "go").touch()
    assert job.end() == 0, job.text
    assert rules.started == ["1-0", "1-1", "2-0", "2-1"]
    begun = [line.split()[-1] for line in job.lines if "begun" in line]
    assert begun == ["True"] * 4, job.text


@pytest.mark.pull
@pytest.mark.parametrize("attempt", [1, 2])
def test_nothing_is_left_of_a_killed_launcher_though_all_is_frozen(start: Run, rules: Rules, attempt: int) -> None:
    held = Rule("hold", step=10, attempt=attempt)
    killed = [Rule("signal SIGKILL", step=9, rank=1)] if attempt == 2 else []
    job = start(*GPT, "--steps", "100000", NPROC_PER_NODE="2", **rules.variables(held, *killed))
    rules.wait_for(held, job)
    pid = standby_of(job)
    below = trees([job.process.pid])[job.process.pid]
    assert pid in below
    send_signal([pid], signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T", "it to be frozen")
    job.signal(signal.SIGKILL)
    wait_until(lambda: not any(map(lives, below)), "all to end")


SEEDS = """
import os, numpy, random, torch
from slipway.process.warm import seed_anew
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
