"""Can the nodes reach each other? Each launcher listens on a port of its own and connects to its neighbour's."""

import asyncio
import hmac
from pathlib import Path
from typing import Self

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.connection_errors import STALLED, connection_failure
from slipway.launch.rendezvous.link import Link, connect
from slipway.launch.resolve.connectivity import loopback_address
from slipway.protocol.decoding import MalformedError

PROBE_SECONDS = 6.0  # for one neighbour, with retries: routes and policies of young pods may lag
RETRY_SECONDS = 0.5
KNOCK_SECONDS = 5.0  # for whoever connects to say the key
VISITORS = 16  # connections at a time; only one neighbour has any business here
KNOCK_BYTES = 16_384


class NeighbourCheck:
    """One launcher's listener for its neighbour, and its own visit to the next; an async context manager."""

    def __init__(self, node_rank: int, config: RendezvousConfig) -> None:
        """Nothing is opened yet."""
        self.key = config.random.randbytes(16).hex()
        self.port = 0
        self.neighbour = config.address  # until node 0 names the neighbour's address
        self._node_rank = node_rank
        self._config = config
        self._visitors: dict[Link, None] = {}  # the oldest first
        self._connected = False  # to the neighbour, which has not answered so far

    async def __aenter__(self) -> Self:
        """Listen on a free port; on loopback alone where the whole job is."""
        listener = self._config.network.listen(0, loopback=loopback_address(self._config.address))
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._answer, sock=listener, limit=KNOCK_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.close()

    async def probe(self, probe: wire.Probe, link: Link) -> None:
        """Visit the neighbour that node 0 names, look for its file, and tell it both."""
        self.neighbour = probe.address or self._config.address
        trouble = await self._visit(probe)
        try:
            sees = (self._config.folder / Path(probe.file).name).exists()
        except OSError:  # a folder that this node cannot look into counts as not shared
            sees = False
        link.send(wire.Probed(probe.round, trouble, sees))

    async def _visit(self, probe: wire.Probe) -> str:
        """What kept this node from its neighbour within PROBE_SECONDS; empty where nothing did."""
        trouble, self._connected = "no answer", False
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                while trouble:
                    trouble = await self._knock(probe)
                    await asyncio.sleep(RETRY_SECONDS if trouble else 0)
        except TimeoutError:
            return f"it accepts the connection and does not answer: {STALLED}" if self._connected else trouble
        return ""

    async def _knock(self, probe: wire.Probe) -> str:
        try:
            link = await connect(await self._config.network.resolve(self.neighbour), probe.port)
        except OSError as error:
            return connection_failure(error)[1]
        self._connected = True
        try:
            link.send(wire.Knock(probe.key))
            answer = await link.receive()
        except (OSError, MalformedError) as error:
            self._connected = False
            return connection_failure(error)[1]
        finally:
            link.cut()
        self._connected = False
        return "" if answer == wire.Here(probe.node_rank) else "another machine answers there"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a visitor that knows the key. If there are too many, the oldest gives way: the neighbour speaks at once."""
        link = Link(reader, writer)
        self._visitors[link] = None
        if len(self._visitors) > VISITORS:
            oldest = next(iter(self._visitors))
            del self._visitors[oldest]
            oldest.cut()
        try:
            async with asyncio.timeout(KNOCK_SECONDS):
                knock = await link.receive()
            if isinstance(knock, wire.Knock) and hmac.compare_digest(knock.key.encode(), self.key.encode()):
                link.send(wire.Here(self._node_rank))
        except (OSError, MalformedError):
            pass
        finally:
            self._visitors.pop(link, None)
            await link.close()
