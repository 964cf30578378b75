"""What images lack for arbitrary user ids is made good, and nothing that a user set is touched."""

import os
import pwd
import socket
from pathlib import Path

import pytest

from slipway.launch.host import private_folder, read_host, replace_home

CACHES = {"XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


HOME = Path("/tmp/slipway-7")


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    assert "USER" not in read_host({}).mended
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert read_host({}).mended["USER"] == read_host({}).mended["LOGNAME"] == f"uid-{os.getuid()}"
    assert "USER" not in read_host({"USER": "me"}).mended


def test_a_home_that_is_none_is_replaced_with_caches_below_it() -> None:
    mended = replace_home({"HOME": "/"}, False, HOME)
    assert set(mended) == {"HOME", *CACHES}
    assert all(Path(mended[name]).is_relative_to(HOME) for name in mended)


def test_a_real_home_stays_though_it_cannot_be_written() -> None:
    assert set(replace_home({"HOME": "/home/me"}, True, HOME)) == CACHES


@pytest.mark.parametrize("name", sorted(CACHES))
def test_a_cache_that_the_user_chose_stays(name: str) -> None:
    assert name not in replace_home({name: "/scratch"}, False, HOME)


def test_the_replacement_is_this_users_own(tmp_path: Path) -> None:
    own = private_folder(tmp_path)
    assert own == tmp_path / f"slipway-{os.getuid()}"
    own.mkdir(mode=0o700)
    assert private_folder(tmp_path) == own
    own.chmod(0o777)
    assert private_folder(tmp_path) != own, "others can put code into it"
    own.rmdir()
    own.symlink_to(tmp_path)
    assert private_folder(tmp_path) != own, "somebody else decides where it leads"


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", read_host({}).free_port))


def test_a_writable_home_is_seen(tmp_path: Path) -> None:
    assert "HOME" not in read_host({"HOME": str(tmp_path)}).mended
    assert "HOME" in read_host({"HOME": str(tmp_path / "absent")}).mended
    assert "HOME" in read_host({}).mended


def test_the_full_name_is_asked_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "lm-2")
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "lm-2.lm.default.svc")
    assert read_host({}).fqdn == "lm-2"
    assert read_host({"JOB_COMPLETION_INDEX": "2"}).fqdn == "lm-2.lm.default.svc"
