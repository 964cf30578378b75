"""What images lack for arbitrary user ids is made good, and nothing that a user set is touched."""

import socket
from pathlib import Path

import pytest

from slipway.launch.host import mend_environment, read_host

CACHES = {"XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


def test_a_complete_host_needs_nothing() -> None:
    assert mend_environment({"HOME": "/home/me", "USER": "me"}, True, True, 1000) == {}
    assert mend_environment({}, True, True, 1000) == {}


def test_a_user_without_a_name_gets_one() -> None:
    assert mend_environment({}, True, False, 12345) == {"USER": "uid-12345", "LOGNAME": "uid-12345"}
    assert mend_environment({"USER": "me"}, True, False, 12345) == {}


def test_a_home_that_cannot_be_written_is_replaced_with_caches_below_it() -> None:
    mended = mend_environment({"HOME": "/", "USER": "me"}, False, True, 12345)
    assert set(mended) == {"HOME", *CACHES}
    assert mended["HOME"].endswith("12345")
    assert all(mended[name].startswith(mended["HOME"]) for name in CACHES)


def test_two_users_of_a_host_do_not_share_a_home() -> None:
    assert mend_environment({}, False, True, 1)["HOME"] != mend_environment({}, False, True, 2)["HOME"]


@pytest.mark.parametrize("name", sorted(CACHES))
def test_a_cache_that_the_user_chose_stays(name: str) -> None:
    assert name not in mend_environment({name: "/scratch"}, False, True, 12345)


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
