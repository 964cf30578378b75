"""Where home and caches go: nothing that a user set is touched, and compiled code lies where it may be loaded."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from slipway.launch.resolve import host
from slipway.launch.resolve.host import make_folders, place_home, private_folder

NAMES = {"XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
CODE = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A home, the image's `data`, and the folder for temporary files."""
    made = {name: tmp_path / name for name in ("home", "data", "scratch")}
    for folder in made.values():
        folder.mkdir()
    return made


def forbid(monkeypatch: pytest.MonkeyPatch, *noexec: Path) -> None:
    """Take these folders for mounts from which no code may be started."""
    monkeypatch.setattr(host, "may_execute", lambda folder: not any(folder.is_relative_to(one) for one in noexec))


def test_with_a_home_and_an_ordinary_tmp_nothing_is_changed(folders: dict[str, Path]) -> None:
    assert place_home({"HOME": str(folders["home"])}, folders["scratch"], None) == {}


@pytest.mark.parametrize("home", ["", "/", "/absent"])
def test_a_home_that_is_none_is_replaced_with_caches_below_it(
    folders: dict[str, Path], home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith(str(folders["scratch"])))
    mended = place_home({"HOME": home}, folders["scratch"], None)
    assert mended["HOME"] == str(folders["scratch"])
    assert set(mended) == {"HOME", *NAMES}
    assert all(Path(value).is_relative_to(folders["scratch"]) for value in mended.values())


def test_a_real_home_stays_though_it_cannot_be_written(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != folders["home"])
    assert set(place_home({"HOME": str(folders["home"])}, folders["scratch"], None)) == NAMES


def test_in_the_image_a_home_that_cannot_be_written_is_replaced_unless_it_is_the_users_own(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `docker run --read-only`, or the user's own project mounted as the working directory."""
    home = folders["home"]
    monkeypatch.setattr(os, "access", lambda path, mode: path != home)
    call = partial(place_home, {"HOME": str(home)}, folders["scratch"], folders["data"])
    assert call([Path("/"), Path("/data")])["HOME"] == str(folders["scratch"])
    assert "HOME" not in call([Path("/"), home])
    assert "HOME" not in call([Path("/"), home / ".aws"])
    monkeypatch.setattr(host, "WORKSPACE", home)
    assert call([Path("/"), home])["HOME"] == str(folders["scratch"])


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_cache_that_the_user_chose_stays(folders: dict[str, Path], name: str) -> None:
    assert name not in place_home({name: "/mine"}, folders["scratch"], folders["data"])


def test_in_the_image_all_caches_lie_in_its_folder_for_them(folders: dict[str, Path]) -> None:
    mended = place_home({"HOME": str(folders["home"])}, folders["scratch"], folders["data"])
    assert set(mended) == NAMES
    assert all(Path(value).parent == folders["data"] for value in mended.values())


def test_a_data_folder_that_cannot_be_written_is_left_out(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "can_write", lambda folder: folder != folders["data"])
    mended = place_home({}, folders["scratch"], folders["data"])
    assert all(Path(value).is_relative_to(folders["scratch"]) for value in mended.values())


@pytest.mark.parametrize(
    ("noexec", "expected"), [(("scratch",), "data"), (("data",), "scratch"), (("data", "scratch"), "home")]
)
def test_compiled_code_goes_where_it_may_be_loaded(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, noexec: tuple[str, ...], expected: str
) -> None:
    forbid(monkeypatch, *(folders[name] for name in noexec))
    mended = place_home({"HOME": str(folders["home"])}, folders["scratch"], folders["data"])
    assert all(Path(mended[name]).is_relative_to(folders[expected]) for name in CODE)
    assert Path(mended["XDG_CACHE_HOME"]).is_relative_to(folders["data"]), "data need not be started"


def test_outside_the_image_a_noexec_tmp_moves_compiled_code_to_the_home(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, folders["scratch"])
    mended = place_home({"HOME": str(folders["home"])}, folders["scratch"], None)
    assert set(mended) == set(CODE)
    assert all(Path(value).is_relative_to(folders["home"]) for value in mended.values())


def test_where_no_code_may_be_loaded_at_all_the_caches_still_have_a_place(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, *folders.values())
    assert set(place_home({}, folders["scratch"], None)) == {"HOME", *NAMES}


def test_the_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    mended = {"HOME": f"{tmp_path}/a", "TRITON_CACHE_DIR": f"{tmp_path}/b/triton", "USER": "uid-7"}
    make_folders(mended)
    make_folders(mended)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"a": 0o700, "b": 0o700}


def test_a_private_folder_is_this_users_own(tmp_path: Path) -> None:
    own = private_folder(tmp_path)
    assert own == tmp_path / f"slipway-{os.getuid()}"
    own.mkdir(mode=0o700)
    assert private_folder(tmp_path) == own
    own.chmod(0o777)
    assert private_folder(tmp_path) != own, "others can put code into it"
    own.rmdir()
    own.symlink_to(tmp_path)
    assert private_folder(tmp_path) != own, "somebody else decides where it leads"
