"""A job of very many launchers in the simulation: what node 0 does for each of them, and how long all of them wait for it.

The other launchers cost no time, since in a job each has a machine of its own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from virtual_network import Listener, NetworkLoop, VirtualNetwork
from virtual_time import HERE, Process

from slipway.launch.rendezvous.client import Client
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve.connectivity import BACKLOG
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome
from slipway.process.machine import Clock
from slipway.protocol.outcomes import Word

LATENCY = (0.0001, 0.001)  # seconds that a packet takes within a data centre
RESENT = 1.0  # seconds until a kernel sends a SYN again that found the queue of a listener full; then twice as long
TRAINING = 60.0  # seconds of heartbeats
GLANCE = 0.01  # seconds between polls of whether a launcher knows of the lost node

# Runs a callback of node 0; the seconds for which node 0 was busy with it.
Meter = Callable[[Callable[..., object], tuple[object, ...]], float]


class ChargingLoop(NetworkLoop):
    """A virtual clock that moves on while the process `charged` computes."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.charged: Process | None = None
        self.spent = 0.0  # seconds for which it was busy
        self._meter = meter

    def charge(self, seconds: float) -> None:
        """It was busy for so long, and everybody waited."""
        self.spent += seconds
        self._files.now += seconds

    def _guard(self, schedule: Any, callback: Callable[..., object], args: tuple[Any, ...], context: Any) -> Any:
        context = copy_context() if context is None else context
        if context.get(HERE) is not self.charged:
            return super()._guard(schedule, callback, args, context)
        return super()._guard(schedule, lambda *args: self.charge(self._meter(callback, args)), args, context)


class CrowdedNetwork(VirtualNetwork):
    """A network whose listeners have queues of BACKLOG connections, as the kernel's. Counts node 0's messages and their bytes;
    node 0 is busy for `message_seconds` with each."""

    def __init__(self, loop: ChargingLoop, message_seconds: float) -> None:
        super().__init__(loop, 0, self._count)
        self.latency = LATENCY
        self.messages = self.bytes = 0
        self._charging, self._message_seconds = loop, message_seconds
        self._queued: dict[Listener, int] = {}

    async def connect(self, factory: Callable[[], Any], address: str, port: int) -> tuple[Any, Any]:
        """Connect once there is room in the listener's queue."""
        listener, pause = self.machine(address).listeners[port], RESENT
        while self._queued.get(listener, 0) >= BACKLOG:
            await asyncio.sleep(pause)
            pause *= 2
        self._queued[listener] = self._queued.get(listener, 0) + 1
        connection = await super().connect(factory, address, port)
        self.loop.call_soon(self._accepted, listener, context=listener.context)  # after its server saw the connection
        return connection

    def _accepted(self, listener: Listener) -> None:
        self._queued[listener] -= 1

    def _count(self, sender: Process | None, receiver: Process | None, data: bytes) -> None:
        if self._charging.charged in (sender, receiver):
            self.messages += 1
            self.bytes += len(data)
            self._charging.charge(self._message_seconds)


@dataclass(frozen=True)
class Cost:
    """Of a part of the job's life: virtual seconds; the seconds node 0 was busy, its messages both ways, and their bytes."""

    seconds: float
    busy: float
    messages: int
    bytes: int


class Crowd:
    """A job with one launcher for each of these infos, from their start to the verdict."""

    def __init__(self, infos: list[NodeInfo], folder: Path, meter: Meter, message_seconds: float = 0.0) -> None:
        self._infos, self._folder, self._nodes = infos, folder, len(infos)
        self._loop = ChargingLoop(meter)
        self._network = self._loop.network = CrowdedNetwork(self._loop, message_seconds)
        self._processes = [
            Process(f"job/{rank}", f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}") for rank in range(self._nodes)
        ]
        self._loop.charged = self._processes[0]
        self._costs: dict[str, Cost] = {}

    def live(self) -> dict[str, Cost]:
        """The costs of `agreement`, a minute of `training`, `lost` (all learn that node 1 is gone) and the `verdict`."""
        asyncio.set_event_loop(self._loop)
        gc.disable()  # a collection of all launchers' objects would count as node 0's time
        try:
            self._loop.run_until_complete(self._live())
        finally:
            gc.enable()
            asyncio.set_event_loop(None)
            self._network.end()
            self._loop.end()
        return self._costs

    async def _live(self) -> None:
        clock = Clock(time=lambda: 1.7e9 + self._loop.time(), monotonic=self._loop.time, age=lambda: 0.0)
        config = [self._config(rank, clock) for rank in range(self._nodes)]
        master, clients = Rendezvous(config[0]), [Client(one) for one in config[1:]]
        master._socket = config[0].network.listen(config[0].port)
        serving = self._start(0, master._serve())
        await asyncio.sleep(1)

        self._begin()
        joins = [client.join(self._infos[rank]) for rank, client in enumerate(clients, 1)]
        await asyncio.gather(*map(self._start, range(self._nodes), [master._join(self._infos[0]), *joins]))
        self._end("agreement")

        await asyncio.sleep(TRAINING)
        self._end("training")

        self._processes[1].kill()
        self._network.end_process(self._processes[1])
        while any(client.news is None for client in clients[1:]):
            await asyncio.sleep(GLANCE)
        self._end("lost")

        master._server.rule = lambda verdict, leaving: Ending(verdict)
        reports = [self._report(rank, client, clock) for rank, client in enumerate(clients[1:], 2)]
        endings = await asyncio.gather(self._report(0, master._client, clock), *reports)
        assert len({str(ending) for ending in endings}) == 1, "not all have the same verdict"
        self._end("verdict")
        master._closing.set()
        await serving

    def _config(self, rank: int, clock: Clock) -> RendezvousConfig:
        return RendezvousConfig(
            node_rank=rank,
            nodes=self._nodes,
            address=self._processes[0].address,
            port=29500,
            timeout=600.0,
            folder=self._folder,
            say=lambda line: None,
            clock=clock,
            network=self._network.seen_from(self._processes[rank]),
            random=Random(rank),
            process=f"launcher {rank}",
        )

    def _report(self, rank: int, client: Client, clock: Clock) -> asyncio.Task[Any]:
        """The workers of a node ended, since their peers are gone."""
        return self._start(rank, client.report(Outcome(rank, self._infos[rank].host, Word.PEER, clock.time())))

    def _start(self, rank: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a launcher's process."""
        context = copy_context()
        context.run(HERE.set, self._processes[rank])
        return self._loop.create_task(work, context=context)

    def _begin(self) -> None:
        self._before = (self._loop.time(), self._loop.spent, self._network.messages, self._network.bytes)

    def _end(self, part: str) -> None:
        """A part of the job's life ends, and the next begins."""
        seconds, busy, messages, size = self._before
        self._begin()
        now = self._before
        self._costs[part] = Cost(now[0] - seconds, now[1] - busy, now[2] - messages, now[3] - size)
