"""NCCL's last collectives, on a time-out and on request. What torch does with its pipe (DumpPipe) is done by a stand-in."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, plan_for
from waiting import wait_until

from slipway.launch.attempt import supervise
from slipway.launch.attempt.stop_handler import Limits
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Attempt
from slipway.launch.attempt.worker_output import WorkerOutput
from slipway.launch.hangs import flight_recorder
from slipway.launch.hangs.flight_recorder import Pipes, record
from slipway.launch.run_directory.run import Run
from slipway.process.machine import Machine

# A worker that hangs: torch's thread goes on.
WORKER = """
import os, time
pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{os.environ['RANK']}.pipe"
assert int(os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"]) > 0
os.mkfifo(pipe, 0o666)
there = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
while not os.read(there, 128):
    time.sleep(0.05)
open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{os.environ['RANK']}", "w").write("dump")
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("environ", "kept"),
    [
        ({}, set()),
        ({"TORCH_FR_BUFFER_SIZE": "5"}, {"TORCH_FR_BUFFER_SIZE"}),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "x"}, {"TORCH_FR_DUMP_TEMP_FILE"}),
        (
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "5", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
            {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"},
        ),
        ({"TORCH_INCLUDE_STACK_TRACE": "1"}, {"TORCH_INCLUDE_STACK_TRACE"}),
    ],
)
def test_nccl_leaves_a_record_unless_the_user_decided_otherwise(environ: dict[str, str], kept: set[str]) -> None:
    told = record(environ, "node-0/logs/nccl-rank-")
    ours = {
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_INCLUDE_STACK_TRACE",
    }
    assert told.keys() == ours - kept
    assert told.get("TORCH_INCLUDE_STACK_TRACE", "0") == "0"
    assert told.get("TORCH_FR_DUMP_TEMP_FILE", "node-0/logs/nccl-rank-") == "node-0/logs/nccl-rank-"


class Workers:
    """Two of them. What started them ends with them."""

    def __init__(self, environ: dict[str, str]) -> None:
        words = [sys.executable, "-c", WORKER]
        self.ranks = [subprocess.Popen(words, env={**os.environ, **environ, "RANK": rank}) for rank in "01"]
        self.process, self.started, self.failures, self.left, self.words = self.ranks[0], True, [], {}, ""
        self.workers = [rank.pid for rank in self.ranks]
        self.folder = Path(environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]).parent
        self.mode = self.folder.stat().st_mode & 0o777
        pipes = {"rank-0.pipe", "rank-1.pipe"}
        wait_until(lambda: pipes <= {path.name for path in self.folder.iterdir()}, "the pipes of both ranks")


def test_ranks_that_hang_are_asked_for_their_last_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Workers] = []

    def start(plan: object, node_dir: object, environ: dict[str, str], output: WorkerOutput, *_: object) -> Workers:
        output.close_writers()
        started.append(Workers(environ))
        return started[0]

    monkeypatch.setattr(supervise, "TICK", 0.05)
    monkeypatch.setattr(flight_recorder, "DUMP_SECONDS", 1.0)
    run = Run(tmp_path, "none", 7)
    (run.node(0).path / "logs").mkdir(parents=True)
    (run.node(0).path / "heartbeat").mkdir()
    with Stops() as stops:
        machine, say = Machine(adopt_orphans=lambda: None), lambda line: None
        attempt = Attempt(
            plan_for(devices=make_devices(2)), run, Limits(60.0, hang=0.1), stops, say, machine=machine, start=start
        )  # type: ignore[arg-type]
        facts = attempt.supervise({}, lambda: None)
    started[0].ranks[1].wait()
    assert facts.hang
    assert facts.hang.text.startswith("no rank makes progress")
    assert facts.status == -signal.SIGKILL
    assert facts.hang.recorded
    assert [(run.node(0).path / f"logs/nccl-attempt-7-rank-{rank}").read_text() for rank in (0, 1)] == ["dump", "dump"]
    assert started[0].mode == 0o700, "nobody else may ask, or put a pipe there"
    assert not started[0].folder.exists()


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, "2000"),
        ({"TORCH_FR_BUFFER_SIZE": "5"}, "5"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "6"}, "6"),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "0"),  # then torch makes no pipes
    ],
)
def test_torch_makes_pipes_where_it_records_anything(environ: dict[str, str], size: str) -> None:
    pipes = Pipes((0, 1))
    told = pipes.open(environ)
    assert told["TORCH_NCCL_TRACE_BUFFER_SIZE"] == size
    os.mkfifo(f"{told['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}0.pipe")
    assert not pipes.ask(), "nobody listens, and opening it would wait for somebody"
    pipes.close()


def test_pipes_of_the_users_own_are_used(tmp_path: Path) -> None:
    pipes = Pipes((3,))
    pipe = tmp_path / "own-3.pipe"
    os.mkfifo(pipe)
    pipes.open({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/own-"})
    there = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert pipes.ask()
    assert os.read(there, 128)
    os.close(there)
    pipes.close()
    assert pipe.exists()


def test_without_a_folder_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    pipes = Pipes((0,))
    assert pipes.open({}) == {}
    assert not pipes.ask()
    pipes.close()
