"""Ports for tests stay held from their choice on, and a server can listen on them all the same."""

import socket

import pytest
from ports import take_port, take_ports

from slipway.launch.resolve.connectivity import free_port, listen


def test_a_server_listens_on_a_port_that_is_held_again_and_again() -> None:
    port = take_port()
    for _ in range(2):
        with listen(port) as server, socket.create_connection(("127.0.0.1", port)):
            assert server.getsockname()[1] == port


def test_before_anybody_listens_a_connection_is_refused() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", take_port()))


def test_several_in_a_row_are_free_for_who_asks_for_them() -> None:
    port = take_ports(3)
    assert [free_port(port + number) for number in range(3)] == [port, port + 1, port + 2]
