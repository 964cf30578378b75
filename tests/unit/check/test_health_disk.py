"""Disks: room, a write that comes back, flock; on real folders, which are left as they were."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest
from stand_ins import make_host

from slipway.check import disk
from slipway.check.disk import Room, judge_error, judge_flock, judge_room, look_at_disks, places
from slipway.launch.resolve.container_checks import fleeting_results
from slipway.protocol.errors import CONFIGURATION, UNHEALTHY

MB, GB = 1 << 20, 1 << 30
HERE = Path("/somewhere")


def test_a_disk_is_written_to_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOW", {})
    monkeypatch.setattr(disk, "LOW_ELSEWHERE", 0)
    environ = {"HOME": str(tmp_path / "home"), "TRITON_CACHE_DIR": str(tmp_path / "a/b")}
    rows = list(look_at_disks(make_host(), environ, tmp_path / "runs" / "mine"))
    assert rows[0].what == "run directory"
    assert {row.level for row in rows} == {"ok"}
    assert "written and read back" in rows[0].found
    assert list(tmp_path.iterdir()) == [], "not even the folder of runs is made"


def test_a_folder_for_several_things_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    environ = {
        "HOME": "/",
        "XDG_CACHE_HOME": str(tmp_path / "data/cache"),
        "TRITON_CACHE_DIR": str(tmp_path / "data/t"),
    }
    assert list(places(make_host(), environ, tmp_path / "runs"))[:2] == ["run directory", "cache"]
    assert "compiled code" not in places(make_host(), environ, tmp_path / "runs")


def test_caches_are_looked_for_where_the_launcher_puts_them(tmp_path: Path) -> None:
    host = make_host(mended={"XDG_CACHE_HOME": str(tmp_path)})
    assert places(host, {"XDG_CACHE_HOME": "/elsewhere"}, Path("/"))["cache"] == tmp_path


@pytest.mark.parametrize(
    ("what", "room", "level"),
    [
        ("run directory", Room(9 * GB, 10_000), "ok"),
        ("run directory", Room(4 * GB, 10_000), "warning"),
        ("cache", Room(4 * GB, None), "ok"),
        ("cache", Room(GB // 2, None), "warning"),
        ("run directory", Room(100 * MB, 10_000), "error"),
        ("run directory", Room(9 * GB, 3), "error"),
    ],
)
def test_a_full_disk_is_an_error_of_the_node(what: str, room: Room, level: str) -> None:
    row = judge_room(what, HERE, room, 0.004)
    assert (row.level, row.code) == (level, UNHEALTHY if level == "error" else 0)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, CONFIGURATION),
        (errno.EROFS, CONFIGURATION),
        (errno.ENOTDIR, CONFIGURATION),
        (errno.ENOENT, CONFIGURATION),
        (errno.EIO, UNHEALTHY),
        (errno.ENOSPC, UNHEALTHY),
        (errno.ESTALE, UNHEALTHY),
    ],
)
def test_who_may_not_write_is_told_from_who_cannot(number: int, code: int) -> None:
    row = judge_error("cache", HERE, OSError(number, os.strerror(number)))
    assert (row.level, row.code) == ("error", code)
    assert row.advice


def test_a_folder_that_cannot_be_made_is_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    row = next(look_at_disks(make_host(), {"HOME": str(tmp_path)}, tmp_path / "file" / "runs"))
    assert (row.what, row.level, row.code) == ("run directory", "error", CONFIGURATION)


def test_in_the_image_the_flag_of_the_runtime_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipway.launch.resolve.container_checks.can_write", lambda folder: False)
    monkeypatch.setattr("slipway.launch.resolve.container_checks.is_read_only", lambda folder: True)
    host = make_host()._replace(image="0.1", runtime="docker", mounts={tmp_path: "ext4"})
    row = next(look_at_disks(host, {}, tmp_path))
    assert (row.level, row.code) == ("error", CONFIGURATION)
    assert "mount it without :ro" in row.found


def test_results_that_go_with_the_container_are_a_warning(tmp_path: Path) -> None:
    docker = make_host()._replace(image="0.1", runtime="docker", scratch=HERE)
    host = docker._replace(mounts={Path("/"): "overlay"})
    rows = {row.what: row for row in look_at_disks(host, {"HOME": str(tmp_path)}, tmp_path)}
    assert rows["results"].level == "warning"
    assert rows["results"].found == fleeting_results(host, tmp_path).removeprefix("warning: ")
    assert (
        f'mkdir -p runs, and add --user "$(id -u):0" -v "$PWD/runs:{tmp_path}" to docker run' in rows["results"].found
    )
    kept = host._replace(mounts={Path("/"): "overlay", tmp_path: "ext4"})
    assert "results" not in {row.what for row in look_at_disks(kept, {"HOME": str(tmp_path)}, tmp_path)}


def test_a_write_that_comes_back_changed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"something else")
    row = next(look_at_disks(make_host(), {"HOME": str(tmp_path)}, tmp_path))
    assert (row.level, row.code) == ("error", UNHEALTHY)
    assert "are not what was written" in row.found


def test_a_disk_that_hangs_is_an_error_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(disk, "SECONDS", 0.5)
    monkeypatch.setattr(disk, "time_durable_write", lambda folder: float(pipe.read_text() or 0))  # waits for a writer
    rows = list(look_at_disks(make_host(), {"HOME": str(tmp_path), "XDG_CACHE_HOME": "/"}, tmp_path))
    assert [row.level for row in rows] == ["error"] * len(rows)
    assert len(rows) > 1
    assert "no answer within" in rows[0].found
    pipe.open("w").close()


def test_flock_holds_on_this_disk_and_its_lack_would_be_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk.flock_holds(tmp_path) is True
    assert list(judge_flock("cache", HERE, True)) == []
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *arguments: None)  # as where it does nothing
        assert disk.flock_holds(tmp_path) is False
    (row,) = judge_flock("cache", HERE, False)
    assert row.level == "warning"
    assert "Slipway does not rely on it" in row.found
    monkeypatch.setenv("PATH", "/nonexistent")
    assert disk.flock_holds(tmp_path) is None
    assert list(judge_flock("cache", HERE, None)) == []
    assert stat.S_ISREG((tmp_path / "lock").stat().st_mode)
