"""Free ports for tests. Nobody else gets one between its choice and its use, since a socket stays bound to it."""

import atexit
import socket
from collections import deque

MOST = 64  # times that ports are held for; far more than one test asks for
HELD: deque[tuple[socket.socket, ...]] = deque()  # the newest last


def take_port() -> int:
    """A port on which a program of the test can listen, whatever the kernel gives to others meanwhile."""
    return take_ports(1)


def take_ports(count: int) -> int:
    """The first of so many ports in a row, all held.

    The sockets are bound, with SO_REUSEADDR, and never listen. The kernel neither hands out their port to others nor lets a
    connection leave from it; but another socket with SO_REUSEADDR, which all servers set, may listen on it (socket(7)).
    """
    while True:
        held = [hold(0)]
        port: int = held[0].getsockname()[1]
        try:
            for number in range(1, count):
                held.append(hold(port + number))
        except (OSError, OverflowError):  # the next one is taken, or there is none
            for one in held:
                one.close()
            continue
        HELD.append(tuple(held))
        let_go(MOST)
        return port


def hold(port: int) -> socket.socket:
    """A socket that is bound to a port of all addresses, 0 for any."""
    held = socket.socket()
    try:
        held.bind(("", port))
    except (OSError, OverflowError):
        held.close()
        raise
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)  # from now on: it shares with those that listen
    return held


def let_go(but: int = 0) -> None:
    """Close the sockets of all ports `but` the newest."""
    while len(HELD) > but:
        for held in HELD.popleft():
            held.close()


atexit.register(let_go)
