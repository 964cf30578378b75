"""Ports for tests stay held from their choice on, and a server can listen on them all the same."""

import socket

import pytest
from ports import MOST, hold, take_port, take_ports

from slipway.launch.resolve.connectivity import free_port, listen


def test_a_server_listens_on_a_port_that_is_held_again_and_again() -> None:
    port = take_port()
    for _ in range(2):
        with listen(port) as server, socket.create_connection(("127.0.0.1", port)):
            assert server.getsockname()[1] == port


def test_before_anybody_listens_a_connection_is_refused() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", take_port()))


def test_nobody_else_gets_one_that_is_held() -> None:
    port = take_port()
    with socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind(("127.0.0.1", port))


def test_several_in_a_row_are_free_for_who_asks_for_them() -> None:
    port = take_ports(3)
    assert [free_port(port + number) for number in range(3)] == [port, port + 1, port + 2]


def test_where_the_third_is_taken_the_first_two_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def hold_all_but_the_third(port: int) -> socket.socket:
        if len(made) == 2:
            made.append(socket.socket())
            made[2].close()
            raise OSError("taken")
        made.append(hold(port))
        return made[-1]

    monkeypatch.setattr("ports.hold", hold_all_but_the_third)
    take_ports(3)
    assert [one.fileno() < 0 for one in made[:3]] == [True] * 3


def test_they_are_given_back_after_many_others() -> None:
    first = take_port()
    for _ in range(MOST):
        take_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
