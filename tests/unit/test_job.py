"""What is left of a job that ended: the verdict on the console, in the run directory, and for the pod."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.launch import job


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
