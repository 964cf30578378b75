"""How long the other workers have once one of them failed; one process stands for all that are left."""

import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Events, event, make_card, make_devices, plan_for, write_files

from slipway.launch.attempt import stop_handler, supervise
from slipway.launch.attempt.ending import Facts, blame_gpu, choose_outcome
from slipway.launch.attempt.hang_watch import HangWatch
from slipway.launch.attempt.job_wide import JobWide
from slipway.launch.attempt.stop_handler import Limits, StopHandler
from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.attempt.supervise import Attempt, Elsewhere
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.launch.attempt.worker_output import WorkerOutput
from slipway.launch.hangs.hang import HangReport
from slipway.launch.resolve.plan import Plan
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.verdict import judge
from slipway.process.machine import CLOCK, MACHINE, Clock, Machine
from slipway.process.tree import OwnProcesses, send_signal, trees
from slipway.protocol.errors import UNHEALTHY
from slipway.protocol.files import HONOURS_STOP, STOP_FILE

LATE, HURRY, SAVING = 0.3, 0.2, 1.5  # s: when something fails, what is left then, and what is needed to end by itself
READY = 'mkdir -p "$SLIPWAY_NODE_DIR"; : > "$SLIPWAY_NODE_DIR/ready"'  # what a shell does before something may fail


def sleeping(status: int) -> tuple[str, ...]:
    """A command that ends by itself, or where it has to be ended does not do so before, however busy the machine is."""
    return ("sleep", str(60 if status else SAVING))


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_handler, "AFTER_FAILURE", HURRY)
    monkeypatch.setattr(supervise, "TICK", 0.05)


class Worker:
    """A worker that ends by itself after a while. What `fails` is told a moment after its start."""

    def __init__(self, fails: str, node_dir: Path, command: tuple[str, ...] = ("sleep", str(SAVING))) -> None:
        self.own = OwnProcesses()
        environ = {**os.environ, "SLIPWAY_NODE_DIR": str(node_dir)}
        self.process = subprocess.Popen(command, env=environ, start_new_session=True)
        self.started, self.workers, self.words, self.left = True, [self.process.pid], "", {}
        self._fails, self._late, self._node_dir = fails, time.monotonic() + LATE, node_dir
        self._gets_ready = READY in command[-1]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Another worker's failure, as torchrun tells it."""
        return [{"rank": 1, "exitcode": 1, "time": 1.0}] if self._fails == "worker" and self._is_late else []

    def lost(self) -> Elsewhere | None:
        """Another node's failure, as the rendezvous tells it; it is asked at every look, and so a good place to write down one."""
        if self._fails == "and stays" and self._is_late:
            write_files(self._node_dir, {"outcome/rank-0.json": '{"outcome": "failed"}'})
        return Elsewhere("node 1 failed") if self._fails == "node" and self._is_late else None

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._late and (not self._gets_ready or (self._node_dir / "ready").exists())


def supervise_worker(
    folder: Path,
    worker: Worker,
    plan: Plan,
    asked: tuple[Stop, ...] = (),
    after_failure: float | None = None,
    said: list[str] | None = None,
    clock: Clock = CLOCK,
) -> Facts:
    """See an attempt through in this run directory, with a stand-in for torchrun and its workers."""

    def start(plan: object, node_dir: object, environ: object, relay: WorkerOutput, *_: object) -> Worker:
        relay.close_writers()
        return worker

    machine = Machine(clock, adopt_orphans=lambda: None)  # pytest's process should stay as it is
    run = Run(folder, "none", 1)
    (run.node(0).path / "logs").mkdir(parents=True, exist_ok=True)
    with Stops() as stops:
        stops.came = [*asked]
        limits, say = Limits(60.0, after_failure=after_failure), (said if said is not None else []).append
        attempt = Attempt(plan, run, limits, stops, say, job_wide=JobWide(own=worker.own), machine=machine, start=start)  # type: ignore[arg-type]
        return attempt.supervise({}, worker.lost)


@pytest.fixture
def script(tmp_path: Path) -> Plan:
    """The plan of a user's script."""
    (tmp_path / "train.py").touch()
    return plan_for((str(tmp_path / "train.py"),))


@pytest.mark.parametrize(
    ("started", "builtin", "told"),
    [(False, False, True), (True, False, False), (False, True, True), (True, True, True)],
)
def test_a_worker_that_shows_no_sign_of_life_for_long_is_importing_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Plan, started: bool, builtin: bool, told: bool
) -> None:
    monkeypatch.setattr(supervise, "LONG_IMPORT", 0.0)
    worker, lines = Worker("", tmp_path, ("sleep", "0.3")), list[str]()
    worker.started = started
    supervise_worker(tmp_path, worker, script._replace(workload=script.workload._replace(builtin=builtin)), said=lines)
    assert [line.partition(",")[0] for line in lines if "torch" in line] == ["importing torch"] * told


@pytest.mark.parametrize(
    ("fails", "stop", "status"),
    [
        ("", False, 0),
        ("worker", False, -signal.SIGKILL),
        ("node", False, -signal.SIGKILL),
        ("and stays", False, -signal.SIGKILL),
        ("", True, 0),
        ("worker", True, 0),
        ("node", True, 0),
    ],
)
def test_who_was_asked_to_stop_may_finish_its_snapshot_though_another_fails(
    tmp_path: Path, fails: str, stop: bool, status: int
) -> None:
    """Without a stop those that are left only wait for the one that failed: seconds for them. Else the grace stands."""
    worker = Worker(fails, tmp_path / "node-0", sleeping(status))
    asked = (Stop(time.monotonic(), signal.SIGTERM, "SIGTERM"),) if stop else ()
    write_files(tmp_path / "node-0", {"heartbeat/rank-0.json": '{"phase": "train", "step": 3, "monotonic": 1.0}'})
    assert supervise_worker(tmp_path, worker, plan_for(), asked).status == status


@pytest.mark.parametrize(
    ("beat", "ends", "number"),
    [
        *(("", True, number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),
        ('{"phase": "setup", "step": 0, "monotonic": 1.0}', True, signal.SIGTERM),
        ('{"phase": "prepare", "step": 0, "monotonic": 1.0}', True, signal.SIGTERM),
        ('{"phase": "load", "step": 0, "monotonic": 1.0}', True, signal.SIGTERM),
        ('{"phase": "first-step", "step": 0, "monotonic": 1.0}', True, signal.SIGTERM),
        ('{"phase": "train", "step": 1, "monotonic": 1.0}', False, signal.SIGTERM),
        ('{"phase": "save", "step": 1, "monotonic": 1.0}', False, signal.SIGTERM),
        ('{"phase": "finish", "step": 0, "monotonic": 1.0}', False, signal.SIGTERM),
    ],
)
def test_a_job_that_took_no_step_yet_ends_at_once_when_it_is_stopped(
    tmp_path: Path, beat: str, ends: bool, number: signal.Signals
) -> None:
    worker, said = Worker("", tmp_path / "node-0", sleeping(ends)), list[str]()
    if beat:
        write_files(tmp_path / "node-0", {"heartbeat/rank-0.json": beat})
    asked = (Stop(time.monotonic(), number, number.name),)
    facts = supervise_worker(tmp_path, worker, plan_for(), asked, said=said)
    assert (facts.status == -signal.SIGKILL) is ends
    assert (facts.moved is False) is ends
    end = (
        "at once, since no step was taken yet and there is nothing to save" if ends else "at most 60 s for the snapshot"
    )
    assert said == [f"{number.name} received: stopping{'' if ends else ','} {end}"]


def test_a_stopped_script_is_not_said_to_save_a_snapshot(tmp_path: Path, script: Plan) -> None:
    said: list[str] = []
    asked = (Stop(time.monotonic(), signal.SIGTERM, "SIGTERM"),)
    supervise_worker(tmp_path, Worker("", tmp_path / "node-0"), script, asked, said=said)
    assert said == ["SIGTERM received: stopping, the script has at most 60 s to end"]


@pytest.mark.parametrize("asked", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGUSR1)], ids=["once", "twice"])
def test_a_stop_is_reported_once_the_workers_can_see_it(tmp_path: Path, asked: tuple[signal.Signals, ...]) -> None:
    """Whoever reads the line knows that no further step than the current one is taken."""
    write_files(tmp_path / "node-0", {"heartbeat/rank-0.json": '{"phase": "train", "step": 1, "monotonic": 1.0}'})
    run = Run(tmp_path, "none", 1)
    seen: list[str] = []

    def say(line: str) -> None:
        seen.append((run.node(0).path / STOP_FILE).read_text())

    with Stops() as stops:
        handler = StopHandler(plan_for(), run, stops, Limits(60.0), say, MACHINE)
        for moment, number in enumerate(asked):
            stops.came.append(Stop(60.0 * moment, number, number.name))
            handler.poll([], lambda: True)
    assert [number.name in text for number, text in zip(asked, seen, strict=True)] == [True] * len(asked)


@pytest.mark.parametrize(
    ("took", "left", "begun", "warns"),
    [(40.0, 20.0, True, True), (40.0, 60.0, True, False), (40.0, 20.0, False, False), (None, 20.0, True, False)],
    ids=["too little time", "enough time", "nothing to save", "no snapshot yet"],
)
@pytest.mark.parametrize("notice", [True, False], ids=["notice", "grace"])
def test_a_save_that_may_take_longer_than_there_is_time_is_announced(
    tmp_path: Path, took: float | None, left: float, begun: bool, warns: bool, notice: bool
) -> None:
    run, said = Run(tmp_path, "none", 1), []
    write_files(
        tmp_path,
        {"node-0/x": "", "snapshots/step-00000010/state.json": "", "snapshots/step-00000010/manifest.json": ""},
    )
    if took is None:
        shutil.rmtree(tmp_path / "snapshots")
    else:
        os.utime(tmp_path / "snapshots/step-00000010/state.json", (1000.0, 1000.0))
        os.utime(tmp_path / "snapshots/step-00000010/manifest.json", (1000.0 + took, 1000.0 + took))
    now = time.monotonic()
    with Stops() as stops:
        handler = StopHandler(plan_for(), run, stops, Limits(1000.0 if notice else left), said.append, MACHINE)
        stops.came.append(Stop(now, signal.SIGTERM, "a notice", by=now + left if notice else math.inf, notice=notice))
        handler.poll([], lambda: begun)
    warnings = [line for line in said if line.startswith("warning: the last snapshot took 40 s to be written, and ")]
    assert len(warnings) == warns, said
    assert not warns or "resumes from step 10" in warnings[0]


@pytest.mark.parametrize("fails", ["", "worker"], ids=["it ends by itself", "it is killed"])
def test_an_attempt_ends_without_the_processes_of_a_container_runtime(tmp_path: Path, fails: str) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60; true"], stdout=subprocess.DEVNULL) as runtime:
        worker = Worker(fails, tmp_path / "node-0")
        supervise_worker(tmp_path, worker, plan_for())
        with WarmStandby(worker.own, wanted=True):
            pass
        assert worker.process.returncode is not None
        assert runtime.poll() is None
        send_signal([runtime.pid, *trees([runtime.pid])[runtime.pid]], signal.SIGKILL)


@pytest.mark.parametrize(
    ("exitcode", "writes", "status"),
    [(3, False, -signal.SIGKILL), (3, True, 0), (-signal.SIGABRT, False, 0)],
    ids=["nothing of it is needed", "a snapshot is", "the cause is not known"],
)
def test_who_is_left_after_a_failure_ends_at_once_unless_it_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exitcode: int, writes: bool, status: int
) -> None:
    monkeypatch.setattr(stop_handler, "AFTER_FAILURE", 2 * SAVING)
    (tmp_path / "snapshots").mkdir()
    [_, seconds] = sleeping(status)
    holds = f"exec 3< {tmp_path / 'snapshots' if writes else tmp_path}; {READY}; sleep {seconds}"
    worker = Worker("", tmp_path / "node-0", ("sh", "-c", holds))
    monkeypatch.setattr(
        Worker,
        "failures",
        property(lambda worker: [{"rank": 1, "exitcode": exitcode, "time": 1.0}] if worker._is_late else []),
    )
    assert supervise_worker(tmp_path, worker, plan_for()).status == status


SAVES = ("sh", "-c", f"trap 'sleep {SAVING}; exit 0' TERM; {READY}; while :; do sleep 0.05; done")
SLEEPS = ("sleep", "60")


@pytest.mark.parametrize(
    ("command", "flag", "after_failure", "status"),
    [
        (SAVES, False, None, 0),
        (SAVES, False, HURRY, -signal.SIGKILL),
        (SAVES, True, None, -signal.SIGKILL),
        (SLEEPS, True, None, -signal.SIGTERM),
        (SLEEPS, False, None, -signal.SIGTERM),
    ],
    ids=["saves", "the setting", "looks at the flag, and has less time", "looks at the flag", "without a handler"],
)
def test_a_script_is_told_of_another_nodes_failure_and_may_save(
    tmp_path: Path,
    script: Plan,
    command: tuple[str, ...],
    flag: bool,
    after_failure: float | None,
    status: int,
) -> None:
    worker = Worker("node", tmp_path / "node-0", command)
    if flag:
        write_files(tmp_path / "node-0", {HONOURS_STOP: ""})
    assert supervise_worker(tmp_path, worker, script, after_failure=after_failure).status == status


@pytest.mark.parametrize("exitcode", [-signal.SIGTERM, 128 + signal.SIGTERM])
def test_who_ended_by_that_sigterm_is_no_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Plan, exitcode: int
) -> None:
    worker = Worker("node", tmp_path / "node-0", SLEEPS)
    monkeypatch.setattr(Worker, "failures", [{"rank": 0, "exitcode": exitcode, "time": 1.0}])
    assert supervise_worker(tmp_path, worker, script).failures == []


def test_torchrun_is_not_waited_for_once_the_workers_ended(tmp_path: Path, script: Plan) -> None:
    """Its own end waits for the torchrun of the other node."""
    worker = Worker("node", tmp_path / "node-0", SLEEPS)
    ended = subprocess.Popen(["true"])
    ended.wait()
    worker.workers = [ended.pid]
    status = supervise_worker(tmp_path, worker, script, after_failure=3600).status
    assert status == -signal.SIGKILL


def test_an_xid_error_is_in_the_verdict_without_waiting_and_no_thread_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with the end of the worker, after the last look at anything else."""
    nvml = Events(make_card(0), make_card(1))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    plan, worker, before = (
        plan_for(devices=make_devices(2)),
        Worker("", tmp_path / "node-0", ("sleep", "60")),
        threading.active_count(),
    )

    def crash() -> Elsewhere | None:
        if nvml.waited.is_set() and worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()
            nvml.events.put(event(nvml.cards[1], 79))
        return None

    monkeypatch.setattr(worker, "lost", crash)
    monkeypatch.setattr(Worker, "failures", [{"rank": 1, "exitcode": -signal.SIGKILL, "time": 102.1}])
    facts = supervise_worker(tmp_path, worker, plan, clock=Clock(time=lambda: 100.0))
    found = blame_gpu(choose_outcome(facts, NodeDirectory(tmp_path / "node-0"), 102.1), facts.xids)
    assert (found.word, found.rank) == ("unhealthy", 1)
    assert found.evidence.startswith("GPU 1 (rank 1): Xid 79, GPU has fallen off the bus, 2.1 s before; SIGKILL")
    assert judge([found]).code(0) == UNHEALTHY
    assert threading.active_count() == before
    assert (nvml.open, nvml.freed, nvml.asked[-1]) == (0, 1, 0), "what waits is taken, and nothing is waited for"


def test_where_workers_cannot_be_watched_the_job_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> dict[str, str]:
        raise PermissionError("no Unix sockets here")

    monkeypatch.setattr("slipway.launch.hangs.stack_request.Listener.open", refuse)
    said: list[str] = []
    with selectors.DefaultSelector() as selector:
        judge = HangReport(tmp_path, 1.0, said.append, end=False)
        watch = HangWatch(plan_for(), Run(tmp_path, "none", 1), Limits(60.0), judge, said.append, MACHINE)
        assert "SLIPWAY_WATCHER" not in watch.open({}, selector, None)  # type: ignore[arg-type]
    assert said == [
        "warning: the workers have no watcher, and hangs are not reported: PermissionError: no Unix sockets here"
    ]
