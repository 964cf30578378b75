"""The configuration of a rendezvous: what a launcher was started with, and the network that it uses."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple

from slipway.launch.rendezvous.link import resolve
from slipway.launch.resolve.connectivity import free_port, interface_towards, listen, own_names
from slipway.process.machine import CLOCK, Clock


class Endpoint(NamedTuple):
    """Where the launcher that leads the others is found, or another one that may have to."""

    address: str
    port: int


@dataclass(frozen=True)
class Network:
    """Names, ports and interfaces; connections themselves are those of the running asyncio loop."""

    resolve: Callable[[str], Awaitable[tuple[str, ...]]] = resolve
    listen: Callable[..., socket.socket] = listen
    free_port: Callable[[int], int] = free_port
    interface_towards: Callable[..., str | None] = interface_towards
    own_names: Callable[[], tuple[str, ...]] = own_names


@dataclass(frozen=True, kw_only=True)
class RendezvousConfig:
    """`address` and `port` are MASTER_ADDR and MASTER_PORT; times are in seconds.

    `timeout` is how long launchers wait for each other; `patience` how long the verdict waits for the other nodes once one
    has failed: at least the grace for stopping workers; `heartbeat` how much silence makes a node a lost one, where this
    is node 0. `least` of the `nodes` are enough (None: all), once `window` has brought no more; `spares` more may wait to take
    the place of one that is lost; `replaced`: somebody starts another launcher for one that is asked to leave, so that the others
    need not stop for good; `awaits`: they wait for one in the place of a node whose machine goes away, too. `folder` holds the
    runs; `say` prints a line and `wake` ends a wait of whoever reads the news, both from any thread; `token` is SLIPWAY_TOKEN or
    empty; `process` names this launcher for its lifetime. `doubtful`: whether `nodes` may have been meant to count processes,
    since somebody set WORLD_SIZE and no scheduler says so. `job` tells this job from others to those who ask for a rank;
    `who` names this launcher if it has asked for its own, and `listening` is the port that it opened for that as node 0.
    `clock`, `network` and `random` are this machine's, except in the simulation.
    """

    node_rank: int
    nodes: int
    address: str
    port: int
    timeout: float
    folder: Path
    say: Callable[[str], None]
    wake: Callable[[], None] = lambda: None
    token: str = ""
    allow_uneven: bool = False
    doubtful: bool = False
    patience: float = 150.0
    least: int | None = None
    replaced: bool = False
    awaits: bool = False
    window: float = 0.0
    spares: int = 0
    heartbeat: float = 30.0
    job: str = ""
    who: str = ""
    listening: socket.socket | None = None
    clock: Clock = CLOCK
    network: Network = Network()  # frozen
    random: Random = field(default_factory=SystemRandom)
    process: str = field(default_factory=lambda: SystemRandom().randbytes(16).hex())

    @property
    def enough(self) -> int:
        """How many nodes the job needs at least."""
        return self.least or self.nodes

    @property
    def launchers(self) -> int:
        """How many launchers there may be: those of the nodes that run, and of spare ones."""
        return self.nodes + self.spares

    @property
    def endpoint(self) -> Endpoint:
        """Where node 0 is found."""
        return Endpoint(self.address, self.port)

    @property
    def succeeds(self) -> bool:
        """Whether a spare node may take the place of node 0. Each attempt runs on `nodes` of the launchers: where these are more
        than half of all, two attempts have a launcher in common, so that no two groups of them can continue at the same time.
        """
        return self.nodes > self.spares > 0
