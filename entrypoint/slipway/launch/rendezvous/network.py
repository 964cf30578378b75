"""The network as the launchers of a job use it. The simulation of their protocol (tests/sim) hands in another one."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slipway.launch.rendezvous.link import resolve
from slipway.launch.resolve.connectivity import free_port, interface_towards, listen


@dataclass(frozen=True)
class Network:
    """Names, ports and interfaces; connections themselves are those of the running asyncio loop."""

    resolve: Callable[[str], Awaitable[tuple[str, ...]]] = resolve
    listen: Callable[..., socket.socket] = listen
    free_port: Callable[[int], int] = free_port
    interface_towards: Callable[..., str | None] = interface_towards


NETWORK = Network()  # this machine's
