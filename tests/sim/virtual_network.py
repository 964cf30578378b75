"""A network in memory for the simulation: latency, partitions, power cuts, half-open connections, names that move.

Connections behave as TCP's do: bytes arrive in order; while two machines cannot reach each other the kernels try again;
a process that dies closes its connections; a machine without power says nothing, and answers old connections with a
reset once it is back.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from virtual_time import HERE, Process, VirtualLoop

from slipway.launch.rendezvous.config import Network
from slipway.launch.resolve.connectivity import PortInUseError
from slipway.protocol.errors import CONFIGURATION

AGAIN = 0.2  # seconds until a kernel tries again to send what was not acknowledged
SEEN_AS: ContextVar[str] = ContextVar(
    "SEEN_AS", default=""
)  # the address that the connections of a task seem to come from
EPHEMERAL = 40_000  # ports that the kernel chooses begin here


@dataclass
class Machine:
    """A machine of the network: whether it has power and network, and how far its wall clock is ahead, in seconds.

    `hosts` are names that lead elsewhere than they do on other machines.
    """

    address: str
    ahead: float = 0.0
    powered: bool = True
    connected: bool = True
    listeners: dict[int, Listener] = field(default_factory=dict)
    ports: int = EPHEMERAL
    hosts: dict[str, str] = field(default_factory=dict)


class NetworkLoop(VirtualLoop):
    """A loop whose servers and connections are those of a virtual network."""

    network: VirtualNetwork

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, *, sock: Any, **_: Any) -> Any:
        """Let a listener take connections."""
        sock.factory, sock.context = factory, copy_context()
        return sock

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to a machine."""
        return await self.network.connect(factory, host, port)


class VirtualNetwork:
    """All machines, names and connections. `sent` is called with who sends what to whom, for each message."""

    def __init__(
        self, loop: VirtualLoop, seed: int, sent: Callable[[Process | None, Process | None, bytes], None]
    ) -> None:
        self.loop, self.sent = loop, sent
        self.machines: dict[str, Machine] = {}
        self.names: dict[str, str] = {}
        self.apart: set[frozenset[str]] = set()  # pairs of machines between which nothing passes
        self.latency = (0.0002, 0.02)  # seconds, lowest and highest
        self._seed, self._ends = seed, 0
        self._open: list[End] = []

    def machine(self, address: str) -> Machine:
        """The machine at an address, made when it is named first."""
        if address not in self.machines:
            self.machines[address] = Machine(address)
        return self.machines[address]

    def passes(self, one: str, other: str) -> bool:
        """Whether packets get from one machine to another."""
        if one == other:
            return True
        ends = [self.machine(one), self.machine(other)]
        return all(end.powered and end.connected for end in ends) and frozenset((one, other)) not in self.apart

    def seen_from(self, process: Process) -> Network:
        """The network as the product knows it, on the machine of a process."""

        async def resolve(name: str) -> tuple[str, ...]:
            await asyncio.sleep(self.latency[1])
            if name in self.machines:
                return (name,)
            names = self.names | self.machine(process.address).hosts
            if name not in names:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return (names[name],)

        return Network(
            resolve=resolve,
            listen=lambda port, loopback=False: self.listen(process, port),
            free_port=lambda port: port,
            interface_towards=lambda address, one_machine=False: "eth0",
            own_names=lambda: (f"host-{process.address}", process.address),
        )

    def listen(self, process: Process, port: int) -> Any:
        """Take a port of the machine of a process, 0 for any."""
        machine = self.machine(process.address)
        if not port:
            machine.ports += 1
            port = machine.ports
        if port in machine.listeners:
            raise PortInUseError(f"MASTER_PORT={port} is in use on this node", CONFIGURATION)
        listener = Listener(machine, port, process)
        machine.listeners[port] = listener
        process.at_death(listener.close)
        return listener

    async def connect(self, factory: Callable[[], Any], address: str, port: int) -> tuple[End, Any]:
        """What asyncio's create_connection does."""
        here = HERE.get()
        assert here
        near, far = self._end(here), self._end(None)
        await asyncio.sleep(near.delay())
        while not (self.passes(here.address, address) and self.machine(address).powered):
            await asyncio.sleep(1)  # nobody answers the SYN, which is sent again
        listener = self.machine(address).listeners.get(port)
        if listener is None or listener.factory is None:
            raise ConnectionRefusedError(111, "Connection refused")
        near.address, far.address = address, SEEN_AS.get() or here.address
        far.process, far.context = listener.process, listener.context
        near.other, far.other = far, near
        near.protocol, far.protocol = factory(), listener.context.run(listener.factory)
        near.protocol.connection_made(near)
        self.loop.call_soon(far.protocol.connection_made, far, context=far.context)
        self._open += [near, far]
        return near, near.protocol

    def _end(self, process: Process | None) -> End:
        self._ends += 1
        return End(self, process, random.Random(self._seed * 1_000_003 + self._ends))

    def end_process(self, process: Process) -> None:
        """The kernel closes the connections of a process that was killed; without power nobody learns of it."""
        for end in self._of(process):
            if self.machine(process.address).powered:
                end.vanish()
            else:
                end.lost = True

    def reset(self, process: Process, address: str) -> None:
        """Something on the way resets the connections between a process and another machine."""
        for end in [end for end in self._of(process) if end.address == address]:
            end.abort()

    def end(self) -> None:
        """The simulation is over: no connection counts as left open."""
        for end in self._open:
            end.lost = True

    def _of(self, process: Process) -> list[End]:
        self._open = [end for end in self._open if not end.lost]
        return [end for end in self._open if end.process is process]


class Listener:
    """A port that a process listens on: first the socket, then asyncio's server, whose `factory` takes connections."""

    def __init__(self, machine: Machine, port: int, process: Process) -> None:
        self.machine, self.port, self.process = machine, port, process
        self.factory: Callable[[], Any] | None = None
        self.context: Context = copy_context()

    def getsockname(self) -> tuple[str, int]:
        """The address, as of a socket."""
        return self.machine.address, self.port

    def dup(self) -> ListenerCopy:
        """Another socket on the same port."""
        return ListenerCopy(self)

    def close(self) -> None:
        """Give the port back."""
        if self.machine.listeners.get(self.port) is self:
            del self.machine.listeners[self.port]


class ListenerCopy:
    """A copy of a socket that listens: once its server is closed, the port is still taken."""

    def __init__(self, listener: Listener) -> None:
        self.__dict__["listener"] = listener

    def __setattr__(self, name: str, value: Any) -> None:
        """A server takes connections of the port."""
        setattr(self.listener, name, value)

    def close(self) -> None:
        """Take no more of them."""
        self.listener.factory = None


class End(asyncio.Transport):
    """One end of a connection; its `process` writes to it, `other` is the other end, at `address`."""

    other: End
    protocol: Any

    def __init__(self, network: VirtualNetwork, process: Process | None, dice: random.Random) -> None:
        super().__init__()
        self._network, self._loop, self._dice = network, network.loop, dice
        self.process, self.context, self.address = process, copy_context(), ""
        self._waiting: list[bytes | ConnectionResetError | None] = []  # None: the end of what is sent
        self._due, self._size, self._late = 0.0, 0, 0
        self._closing = False
        self.lost = False

    def delay(self) -> float:
        """How long the next packet takes, in seconds."""
        return self._dice.uniform(*self._network.latency)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The addresses of both ends."""
        if name == "sockname" and self.process:
            return self.process.address, 1
        return (self.address, 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def get_write_buffer_size(self) -> int:
        return self._size

    def pause_reading(self) -> None:
        """Nothing: the other end's bytes count as unread until they are delivered."""

    def resume_reading(self) -> None:
        """Nothing either."""

    def write(self, data: Any) -> None:
        if not self._closing and not self.lost and data:
            self._size += len(data)
            self._network.sent(self.process, self.other.process, bytes(data))
            self._send(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send what waits, then the end; what the other end sends still arrives."""
        if not self._closing:
            self._send(None)

    def close(self) -> None:
        """Send what waits, then the end."""
        if not self._closing:
            self._closing = True
            self._send(None)
            self._lose(None)

    def abort(self) -> None:
        """Drop what waits, and reset the connection."""
        if not self.lost:
            self._waiting.clear()
            self._reset()
            self._lose(None)

    def vanish(self) -> None:
        """The process is gone: what it sent arrives, then the end."""
        if not self.lost:
            self._closing = self.lost = True
            self._send(None)

    def _send(self, what: bytes | None) -> None:
        self._waiting.append(what)
        self._due = max(self._due, self._loop.time() + self.delay())
        self._at(self._due, self._pump)

    def _pump(self) -> None:
        """Deliver the next of what waits, or try again later."""
        if not self._waiting:
            return
        here = self.other.address
        if not self._network.passes(here, self.address):
            if not (self.lost and not self._network.machine(here).powered):
                self._late += 1
                if self._late == 1:
                    self._at(self._loop.time() + AGAIN, self._pump_late)
            return
        what = self._waiting.pop(0)
        if isinstance(what, bytes):
            self._size -= len(what)
        if self.other.lost:
            self._waiting.clear()
            self._at(
                self._loop.time() + self.delay(), self._lose, ConnectionResetError(104, "Connection reset by peer")
            )
        elif what is None:
            self._hand_over(self._end_of_file)
        else:
            self._hand_over(self.other.protocol.data_received, what)

    def _pump_late(self) -> None:
        """Deliver as many as were due while the network let nothing pass."""
        late, self._late = self._late, 0
        while late and not self._late:
            self._pump()
            late -= 1
        self._late += late

    def _end_of_file(self) -> None:
        if not self.other.lost and not self.other.protocol.eof_received():
            self.other.close()

    def _reset(self) -> None:
        """Tell the other end, if the network lets it pass; a reset is sent only once."""
        if self._network.passes(self.other.address, self.address):
            error = ConnectionResetError(104, "Connection reset by peer")
            self._at(self._loop.time() + self.delay(), self.other._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._waiting = [what for what in self._waiting if error is None]
            self._loop.call_soon(self.protocol.connection_lost, error, context=self.context)

    def _hand_over(self, act: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(act, *args, context=self.other.context)

    def _at(self, when: float, act: Callable[..., object], *args: object) -> None:
        """Let the network act, whatever became of the processes."""
        self._loop.call_at(when, act, *args, context=Context())
