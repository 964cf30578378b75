"""What is left of a job that ended: the verdict on the console, in the run directory, and for the pod."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from stand_ins import Slipway, make_devices, make_host, make_sources, plan_for

from slipway.cli import cli
from slipway.launch import closing
from slipway.launch.closing import IMAGE_USER, as_typed_here, fill_in, next_commands
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run
from slipway.protocol.errors import EXITS


@pytest.fixture
def termination_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "termination-log"
    monkeypatch.setattr(closing, "TERMINATION_LOG", file)
    return file


def test_a_pod_is_told_in_place(termination_log: Path) -> None:
    termination_log.write_text("what was there before and is longer than the news" * 9)
    inode = termination_log.stat().st_ino
    closing.tell_pod(78, "no such file")
    assert json.loads(termination_log.read_text()) == {"code": 78, "word": "configuration", "message": "no such file"}
    assert termination_log.stat().st_ino == inode, "it is a mounted file, which cannot be replaced"


def test_where_there_is_no_pod_nothing_is_made(termination_log: Path) -> None:
    closing.tell_pod(78, "no such file")
    assert not termination_log.exists()


def test_what_somebody_types_beside_a_job_is_not_its_pods_end(slipway: Slipway, termination_log: Path) -> None:
    termination_log.touch()
    assert slipway("status", "no-such-run").code == 78
    assert termination_log.read_text() == ""


ALONE = {
    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "SLIPWAY_MUSTER_TIMEOUT": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "environ", "env_file", "code", "says"),
    [
        (("run", "--nodes"), {}, "", 2, "--nodes"),
        (("gpt", "--bogus"), {}, "", 2, "--bogus"),
        (("gtp",), {}, "", 78, "gpt"),
        (("gpt",), {"RANK": "3", "WORLD_SIZE": "2"}, "", 78, "RANK=3"),
        (("gpt",), {}, "RANK='1'\n", 78, ".env"),
        (("run", "--check", "gpt", "--runs", "/proc/none"), {}, "", 78, "/proc/none"),
        (("check", "--local", "--runs", "/proc/none"), {}, "", 78, "/proc/none"),
        (("linear",), ALONE, "", 76, "missing node rank 0"),
    ],
)
def test_what_ends_a_pod_before_its_job_is_told_too(
    slipway: Slipway,
    termination_log: Path,
    words: tuple[str, ...],
    environ: dict[str, str],
    env_file: str,
    code: int,
    says: str,
) -> None:
    termination_log.touch()
    Path(".env").write_text(env_file)
    answer = slipway(*words, **environ)
    told = json.loads(termination_log.read_text())
    assert (answer.code, told["code"], told["word"]) == (code, code, EXITS[code].word), answer.err
    assert says in told["message"]


def test_a_mistake_of_ours_is_told_to_the_pod(
    slipway: Slipway, termination_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    termination_log.touch()
    monkeypatch.setattr(cli, "understand", None)
    with pytest.raises(TypeError):
        slipway("run")
    told = json.loads(termination_log.read_text())
    assert (told["code"], told["word"]) == (1, "failed")
    assert told["message"].startswith("TypeError: ")


def test_a_path_is_shown_as_one_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert closing.short_path(tmp_path / "runs" / "gpt-1") == "runs/gpt-1"
    assert closing.short_path(Path("/elsewhere/gpt-1")) == "/elsewhere/gpt-1"


def test_a_job_may_outlive_the_folder_that_it_was_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert closing.short_path(tmp_path / "runs" / "gpt-1") == str(tmp_path / "runs" / "gpt-1")


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
    assert as_typed_here("slipway gpt", asked) == shown


def test_a_command_to_try_next_names_the_image_where_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: IMAGE_USER)
    host = dataclasses.replace(make_host(), image="0.1.0", runtime="docker")
    asked = Job(plan_for(), make_sources({"IMAGE": "slipway:dev"}), make_devices(), {}, None, host)
    assert as_typed_here("slipway gpt", asked) == f"docker run --rm {FLAGS} slipway:dev gpt"


@pytest.mark.parametrize("user", [0, 4711])
def test_results_belong_to_the_user_id_that_wrote_them(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr("os.getuid", lambda: user)
    host = dataclasses.replace(make_host(), image="0.1.0", runtime="docker")
    asked = Job(plan_for(), make_sources({}), make_devices(), {}, None, host)
    assert f"--user {user}:0" in as_typed_here("slipway gpt", asked)


def test_where_the_run_vanishes_no_command_to_try_next_needs_it() -> None:
    for workload in WORKLOADS.values():
        assert next_commands(workload, fleeting=False) == workload.next
        commands = next_commands(workload, fleeting=True)
        assert len(commands) == 3
        assert not any("{run}" in command for command in commands)
    assert next_commands(plan_for(("-m", "own")).workload, fleeting=True) == ()


def test_a_run_that_was_stopped_goes_on_with_the_first_command_to_try_next() -> None:
    for workload in WORKLOADS.values():
        first, *others = next_commands(workload, fleeting=False, stopped=True)
        assert (first == f"slipway {workload.name} --run-dir {{run}} --resume auto{{same}}") == workload.resumes
        assert not any("--resume" in command for command in others)


@pytest.mark.parametrize(
    ("arguments", "same", "longer"),
    [
        ("", "", " --steps 80"),
        ("--epochs 3 --lr 1", " --epochs 3 --lr 1", " --lr 1 --steps 80"),
        ("--lr 1 --steps=40", " --lr 1 --steps=40", " --lr 1 --steps 80"),
        ("--dataset 'folder:my pictures'", " --dataset 'folder:my pictures'", " --dataset 'folder:my pictures' --steps 80"),
        ("--export there --model small", " --export there --model small", " --model small --steps 80"),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_the_arguments_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, same: str, longer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "snapshots" / "step-00000040").mkdir(parents=True)
    run = Run(tmp_path / "mine", "none", 1)
    words = shlex.split(arguments)
    assert fill_in("slipway gpt --run-dir {run}{same}", run, words) == f"slipway gpt --run-dir mine{same}"
    assert fill_in("slipway gpt --run-dir {run}{longer}", run, words) == f"slipway gpt --run-dir mine{longer}"
