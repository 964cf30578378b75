"""A stage for rendezvous: launchers as threads, a bare client that may misbehave, and what each of them saw."""

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.launch.rendezvous.authentication import Session, key_of
from slipway.launch.rendezvous.codec import decode, encode
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import (
    AttemptStart,
    Greeting,
    Hello,
    Here,
    NodeInfo,
    Ping,
    Pong,
    Probe,
    Probed,
    Proof,
    Start,
)
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.rendezvous.server import Rule
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.errors import LaunchError

# Here rather than in conftest.py: stub.py is a process of its own.
sys.path += [str(Path(__file__).parents[1] / "unit"), str(Path(__file__).parents[1])]

from participants import make_info, make_outcome
from waiting import wait_until

LOOPBACK = "127.0.0.1"


@dataclass
class Launcher(threading.Thread):
    """One launcher: joins, does `work` (which returns its outcome), reports. Everything it saw is kept."""

    info: NodeInfo
    nodes: int
    port: int
    folder: Path
    address: str = LOOPBACK
    timeout: float = 20.0
    patience: float = 20.0
    token: str = ""
    allow_uneven: bool = False
    work: Callable[[Rendezvous], Outcome | None] | None = None
    stopped: Callable[[], bool] = lambda: False
    rule: Rule = lambda verdict, leaving: Ending(verdict)
    more: dict[str, Any] = field(default_factory=dict)
    begun: AttemptStart | None = None
    ending: Ending | None = None
    error: LaunchError | None = None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            with self.open() as rendezvous:
                self.begun = rendezvous.join(self.info, self.stopped)
                if self.begun:
                    rank = self.info.node_rank
                    outcome = self.work(rendezvous) if self.work else make_outcome(rank)
                    self.ending = rendezvous.report(outcome, self.rule) if outcome else None
        except LaunchError as error:
            self.error = error

    def open(self) -> Rendezvous:
        return Rendezvous(
            RendezvousConfig(
                node_rank=self.info.node_rank,
                nodes=self.nodes,
                address=self.address,
                port=self.port,
                timeout=self.timeout,
                patience=self.patience,
                folder=self.folder,
                say=self.lines.append,
                token=self.token,
                allow_uneven=self.allow_uneven,
                **self.more,
            )
        )

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, as far as this launcher heard of it."""
        return self.ending.verdict if self.ending else None

    @property
    def code(self) -> int | None:
        """The exit code of a real launcher."""
        if self.error:
            return self.error.code
        return self.verdict.code(self.info.node_rank) if self.verdict else None

    @property
    def log(self) -> str:
        return "\n".join([*self.lines, str(self.error or "")])


def play(*launchers: Launcher, seconds: float = 120.0) -> None:
    """Start all launchers and wait for their end."""
    for launcher in launchers:
        launcher.start()
    deadline = time.monotonic() + seconds
    for launcher in launchers:
        launcher.join(max(0.0, deadline - time.monotonic()))
        assert not launcher.is_alive(), f"node {launcher.info.node_rank} hangs; it said {launcher.lines}"


class Client:
    """A bare connection to node 0 that speaks as much of the protocol as a test wants."""

    def __init__(self, port: int, sender: str = "") -> None:
        self.socket = wait_until(lambda: connection_to(port, sender), f"a listener on port {port}")
        self._file = self.socket.makefile("rb")
        self._session: Session | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def receive(self) -> Any:
        """The next message; None at the end of the connection."""
        if not (line := self.receive_line()):
            return None
        text = self._session.open(line) if self._session else line[line.find(b"{") :]
        return decode(text)

    def receive_line(self) -> bytes:
        """The next line as it comes."""
        return self._file.readline()

    def seal(self, *messages: Any) -> bytes:
        """Messages as the bytes that are sent next."""
        lines = map(encode, messages)
        return b"".join(self._session.seal(line) if self._session else line for line in lines)

    def send(self, message: Any) -> None:
        self.socket.sendall(self.seal(message))

    def authenticate(self, token: str = "") -> None:
        """Exchange nonces and hear node 0's proof; from then on messages are sealed."""
        nonce, greeting = "0" * 32, self.receive()
        self.send(Greeting(nonce))
        self._session = Session(key_of(token), listener=greeting.nonce, connector=nonce, listens=False)
        assert isinstance(self.receive(), Proof)

    def introduce(self, info: NodeInfo, *, process: str = "p", token: str = "", clock: float = 0.0, **more: Any) -> Any:
        """Proofs, hello with `more` fields, and node 0's answer. `clock` is how far this node's clock is ahead, in seconds."""
        self.authenticate(token)
        self.send(Hello(process, time.time() + clock, 1, "k", info, **more))
        return self.receive()

    def wait_for(self, kind: type) -> Any:
        """The next message of a type; heartbeats before it are answered."""
        while not isinstance(message := self.receive(), kind):
            assert message is not None, f"node 0 closed the connection before any {kind.__name__}"
            if isinstance(message, Ping):
                self.send(Pong())
        return message


def connection_to(port: int, sender: str = "") -> socket.socket | None:
    """A connection, None where nobody listens yet."""
    with suppress(ConnectionRefusedError):
        return socket.create_connection((LOOPBACK, port), 15, (sender, 0))
    return None


def take_part(client: Client, node_rank: int = 1, nodes: int = 2, clock: float = 0.0) -> None:
    """Take part until the start, with an honest port of the neighbour check; nothing that comes afterwards is answered."""
    client.send(answer_neighbour(client, make_info(node_rank, nodes), clock))
    client.wait_for(Start)


def answer_neighbour(client: Client, info: NodeInfo, clock: float = 0.0) -> Probed:
    """Take part until the neighbour has visited, and return what is to be told of the own visit."""
    door = socket.create_server((LOOPBACK, 0))
    client.authenticate()
    client.send(Hello("p", time.time() + clock, door.getsockname()[1], "k", info))
    probe = client.wait_for(Probe)
    with door, door.accept()[0] as visitor:
        visitor.recv(1000)
        visitor.sendall(encode(Here(info.node_rank)))
    return Probed(probe.round, "", True)
