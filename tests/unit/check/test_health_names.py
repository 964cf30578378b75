"""Names and ports: what does not resolve is told with its usual cause, and nothing waits long for a name server."""

from __future__ import annotations

import socket
import threading

import pytest
from stand_ins import resolve

from slipway.check.finding import within
from slipway.check.machine import judge_own_name, judge_port, look_at_names
from slipway.check.machine import resolve as look_up
from slipway.launch.rendezvous.messages import Finding
from slipway.protocol.errors import CONFIGURATION

TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-0"}


def ask(name: str) -> str:
    """A name server."""
    known = {"node-0": "10.0.0.1", "localhost": "127.0.0.1", socket.gethostname(): "10.0.0.2"}
    if name not in known:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return known[name]


def rows(**changes: str) -> dict[str, Finding]:
    return {row.what: row for row in look_at_names(resolve(TWO | changes), ask)}


def test_names_that_resolve_are_shown_with_their_address() -> None:
    found = rows()
    assert list(found) == ["host name", "MASTER_ADDR"]
    assert found["MASTER_ADDR"].found == "node-0, 10.0.0.1"
    assert {row.level for row in found.values()} == {"ok"}


def test_a_master_that_does_not_resolve_is_an_error_with_its_usual_cause() -> None:
    row = rows(MASTER_ADDR="no-such-host.invalid")["MASTER_ADDR"]
    assert (row.level, row.code) == ("error", CONFIGURATION)
    assert "no-such-host.invalid does not resolve" in row.found
    assert row.advice.startswith("usually: ")


@pytest.mark.parametrize("name", ["a..b", "x" * 300])
def test_a_host_whose_own_name_cannot_be_one_is_warned_of(name: str) -> None:
    row = judge_own_name(name, True, look_up)
    assert row.level == "warning"
    assert "does not resolve (this cannot be a host name)" in row.found


def test_a_master_on_loopback_is_a_warning_with_several_nodes() -> None:
    assert rows(MASTER_ADDR="localhost")["MASTER_ADDR"].level == "warning"


def test_a_single_node_needs_no_names() -> None:
    assert [row.what for row in look_at_names(resolve({}), ask)] == ["host name"]
    assert [row.what for row in look_at_names(None, ask)] == ["host name"]
    assert judge_own_name("nobody", False, ask).level == "ok"
    assert judge_own_name("nobody", True, ask).level == "warning"


def test_a_port_in_use_on_node_0_is_an_error_that_names_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = rows(RANK="0", MASTER_ADDR="localhost", MASTER_PORT=str(port))["MASTER_PORT"]
        assert (found.level, found.code) == ("error", CONFIGURATION)
        assert f"MASTER_PORT={port} is in use" in found.found
    assert judge_port(port, "127.0.0.1").level == "ok"


def test_what_does_not_answer_ends_with_a_time_out() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        within(0.1, never.wait)
    never.set()
    assert within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
