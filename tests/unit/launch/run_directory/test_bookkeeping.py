"""What the launcher does besides never makes a bad end of a good one: each such call fails once the workers have ended."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for, write_files

from slipway.launch.attempt.supervise import Attempt
from slipway.launch.attempt.worker_output import WorkerOutput
from slipway.launch.job import run_job
from slipway.launch.resolve import devices
from slipway.launch.resolve.job_spec import Job
from slipway.process.machine import Machine
from slipway.protocol.cgroups import count_ooms
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.protocol.files import OUTCOMES, rank_file, write_json

STALE = OSError(errno.ESTALE, "Stale file handle")
# Every call behind the last step that touches a file system.
CALLS = (
    "protocol.cgroups.read_kernel_file",
    "protocol.cgroups.cgroup_folders",
    "protocol.snapshots.list_snapshots",
    "launch.closing.fleeting_results",
    "launch.run_directory.directory.RunDirectory.attempts_before",
    "launch.closing.write_json",
    "process.folder_lock.FolderLock._mine",
)


class Finished:
    """A workload whose one worker has noted a good end. `ended` is called as it does."""

    started, workers, words = True, [], ""
    failures: list[dict[str, Any]] = []  # noqa: RUF012
    left: dict[int, float] = {}  # noqa: RUF012

    def __init__(self, node_dir: Path, output: WorkerOutput, ended: Callable[[], None]) -> None:
        output.close_writers()
        write_json(rank_file(node_dir, OUTCOMES, 0), {"outcome": "finished"})
        write_json(rank_file(node_dir, OUTCOMES, 1), {"outcome": "finished"})
        self.process = subprocess.Popen(["true"])
        ended()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], int]:
    """Runs a job of one node; its exit code."""

    def call(ended: Callable[[], None]) -> int:
        def start(plan: object, node_dir: Path, environ: object, output: WorkerOutput, *_: object) -> Finished:
            return Finished(node_dir, output, ended)

        machine = Machine(adopt_orphans=lambda: None)  # pytest's process should stay as it is
        monkeypatch.setattr("slipway.launch.attempt.attempt.Attempt", partial(Attempt, machine=machine, start=start))
        options = {"SLIPWAY_RUN_DIR": str(tmp_path / "run")}
        sources, plan = make_sources({}, options), plan_for(("linear",), options=options)
        return run_job(Job(plan, sources, make_devices(), {}, None, make_host()))

    return call


@pytest.mark.parametrize("name", CALLS)
def test_a_finished_job_stays_finished_whatever_its_bookkeeping_meets(
    run: Callable[[Callable[[], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise STALE

    code = run(lambda: monkeypatch.setattr(f"slipway.{name}", fails))
    said = capfd.readouterr().err
    assert code == 0, said
    assert "finished" in said
    assert "cannot be started" not in said


def test_cannot_be_started_is_said_of_starting(run: Callable[[Callable[[], None]], int]) -> None:
    def fails() -> None:
        raise STALE

    with pytest.raises(LaunchError, match=r"The workload cannot be started: .*Stale") as caught:
        run(fails)
    assert caught.value.code == CONFIGURATION


def test_a_control_group_that_went_away_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_files(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill 3\n"})
    assert count_ooms(root) == 3
    stat = devices.os.stat

    def stale(path: Any, *more: Any, **others: Any) -> Any:
        if "sys/fs/cgroup" in str(path):
            raise STALE
        return stat(path, *more, **others)

    monkeypatch.setattr("os.stat", stale)
    assert count_ooms(root) == 0
