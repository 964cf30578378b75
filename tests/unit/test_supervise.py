"""How long the other workers have once one of them failed; one process stands for all that are left."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import plan_for, write_files

from slipway.launch.attempt import deadline, supervise
from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.attempt.supervise import Attempt, Elsewhere
from slipway.launch.attempt.worker_output import WorkerOutput
from slipway.launch.run_directory.run import Run

LATE, HURRY, SAVING = 0.3, 0.2, 1.5  # s: when something fails, what is left then, and what is needed to end by itself


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "AFTER_FAILURE", HURRY)
    monkeypatch.setattr(supervise, "TICK", 0.05)
    monkeypatch.setattr(supervise, "adopt_orphans", lambda: None)  # pytest's process should stay as it is


class Worker:
    """A worker that ends by itself after a while. What `fails` is told a moment after its start."""

    def __init__(self, fails: str, node_dir: Path) -> None:
        self.process = subprocess.Popen(["sleep", str(SAVING)], start_new_session=True)
        self.started, self.workers, self.words, self.left = True, [self.process.pid], "", {}
        self._fails, self._late, self._node_dir = fails, time.monotonic() + LATE, node_dir

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Another worker's failure, as torchrun tells it."""
        return [{"rank": 1, "exitcode": 1, "time": 1.0}] if self._fails == "worker" and self._is_late else []

    def lost(self) -> Elsewhere | None:
        """Another node's failure, as the muster tells it; it is asked at every look, and so a good place to write down one."""
        if self._fails == "and stays" and self._is_late:
            write_files(self._node_dir, {"outcome/rank-0.json": '{"outcome": "failed"}'})
        return Elsewhere("node 1 failed") if self._fails == "node" and self._is_late else None

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._late


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, stop: bool, status: int
) -> None:
    """Without a stop those that are left only wait for the one that failed: seconds for them. Else the grace stands."""
    worker = Worker(fails, tmp_path / "node-0")

    def start(plan: object, node_dir: object, environ: object, relay: WorkerOutput, *_: object) -> Worker:
        relay.close_writers()
        return worker

    monkeypatch.setattr(supervise, "Child", start)
    run = Run(tmp_path, "none", 1)
    (run.node(0) / "logs").mkdir(parents=True)
    with Stops() as stops:
        stops.came = [Stop(time.monotonic(), signal.SIGTERM, "SIGTERM")] if stop else []
        attempt = Attempt(plan_for(), run, grace=60.0, hang=0.0, say=lambda line: None, stops=stops)
        assert attempt.supervise({}, worker.lost).status == status
