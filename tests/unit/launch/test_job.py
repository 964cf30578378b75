"""What is left of a job that ended: the verdict on the console, in the run directory, and for the pod."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_ins import Slipway

from slipway.cli import cli
from slipway.launch import closing
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
    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "SLIPWAY_RENDEZVOUS_TIMEOUT": "1",
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
