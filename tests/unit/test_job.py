"""What is left of a job that ended: the verdict on the console, in the run directory, and for the pod."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for

from slipway.launch import job
from slipway.launch.catalog import WORKLOADS
from slipway.launch.job import IMAGE_USER, Job, next_commands, typed


@pytest.fixture
def termination_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "termination-log"
    monkeypatch.setattr(job, "TERMINATION_LOG", file)
    return file


def test_a_pod_is_told_in_place(termination_log: Path) -> None:
    termination_log.write_text("what was there before and is longer than the news")
    inode = termination_log.stat().st_ino
    job.tell_pod(json.dumps({"code": 1}).encode())
    assert json.loads(termination_log.read_text()) == {"code": 1}
    assert termination_log.stat().st_ino == inode, "it is a mounted file, which cannot be replaced"


def test_where_there_is_no_pod_nothing_is_made(termination_log: Path) -> None:
    job.tell_pod(b"{}")
    assert not termination_log.exists()


def test_a_path_is_shown_as_one_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert job.shown(tmp_path / "runs" / "gpt-1") == "runs/gpt-1"
    assert job.shown(Path("/elsewhere/gpt-1")) == "/elsewhere/gpt-1"


FLAGS = '--shm-size 1g --stop-timeout 120 -v "$PWD/runs:/checkpoints"'


@pytest.mark.parametrize(
    ("image", "gpus", "runtime", "shown"),
    [
        (None, 1, "docker", "slipway gpt"),
        ("0.1.0", 0, "docker", f"docker run --rm {FLAGS} IMAGE gpt"),
        ("0.1.0", 1, "docker", f"docker run --rm --gpus all {FLAGS} IMAGE gpt"),
        ("0.1.0", 1, "slurm", "slipway gpt"),
    ],
)
def test_a_command_to_try_next_is_one_for_the_place_where_people_type(
    monkeypatch: pytest.MonkeyPatch, image: str | None, gpus: int, runtime: str, shown: str
) -> None:
    monkeypatch.setattr("os.getuid", lambda: IMAGE_USER)
    devices, host = make_devices(gpus), dataclasses.replace(make_host(), image=image, runtime=runtime)
    asked = Job(plan_for(devices=devices), make_sources({}), devices, {}, None, host)
    assert typed("slipway gpt", asked) == shown


@pytest.mark.parametrize("user", [0, 4711])
def test_results_belong_to_the_user_id_that_wrote_them(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr("os.getuid", lambda: user)
    host = dataclasses.replace(make_host(), image="0.1.0", runtime="docker")
    asked = Job(plan_for(), make_sources({}), make_devices(), {}, None, host)
    assert f"--user {user}:0" in typed("slipway gpt", asked)


def test_where_the_run_vanishes_no_command_to_try_next_needs_it() -> None:
    for workload in WORKLOADS.values():
        assert next_commands(workload, fleeting=False) == workload.next
        commands = next_commands(workload, fleeting=True)
        assert len(commands) == 3
        assert not any("{run}" in command for command in commands)
    assert next_commands(plan_for(("-m", "own")).workload, fleeting=True) == ()
