"""Folders that are made under another name: whose leftovers are removed, and whose are not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from slipway.protocol.durable import replace_file
from slipway.protocol.mistake import ConfigurationError
from slipway.train.worker import prepared
from slipway.train.worker.prepared import make_folder_once, temporary_folder


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a crash left behind while `tmp_path / "model"` was made."""
    monkeypatch.setattr(prepared.shutil, "rmtree", lambda *_, **__: None)
    with temporary_folder(tmp_path / "model") as folder:
        pass
    monkeypatch.undo()
    return folder


def make_old(path: Path) -> Path:
    """The same, as if nobody had touched it for a year."""
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path, (0, 0))
    return path


def test_what_a_crash_left_is_removed_once_it_is_nobodys_any_more(left: Path, tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "model"):
        assert left.is_dir()  # another process may be at it
    make_old(left)
    with temporary_folder(tmp_path / "model"):
        assert not left.exists()


@pytest.mark.parametrize("name", ["model", "*", "mod*"])
def test_hidden_folders_of_others_stay(left: Path, tmp_path: Path, name: str) -> None:
    others = [make_old(tmp_path / other) for other in (".model.before", ".model.d", ".git.d")]
    make_old(left)
    with temporary_folder(tmp_path / name):
        assert all(other.is_dir() for other in others)
        assert left.exists() == (name != "model")


def test_a_leftover_that_goes_while_it_is_looked_at_is_no_error(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def vanish(path: Path, **more: Any) -> os.stat_result:
        if path == left:
            left.rmdir()  # as another node does that shares the folder
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", vanish)
    with temporary_folder(tmp_path / "model") as folder:
        assert folder.is_dir()
    assert not left.exists()


def test_a_file_is_replaced_without_touching_a_hidden_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MASTER_ADDR=n0")
    replace_file(tmp_path / "env", "page")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {".env": "MASTER_ADDR=n0", "env": "page"}


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path) -> None:
    def make(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}'"):
        make_folder_once(tmp_path / "glyphs", make)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_made_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigurationError, match=r"file/slipway cannot be used .* XDG_CACHE_HOME=PATH"):
        make_folder_once(tmp_path / "file" / "slipway" / "glyphs", Path.touch)
    assert (tmp_path / "file").read_text() == "no folder"
