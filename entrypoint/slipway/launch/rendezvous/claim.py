"""RANK=auto: a launcher finds out its node rank, before it joins the others. docs/rendezvous.md describes it.

Node 0 is the launcher whose machine has an address that MASTER_ADDR leads to, and which reaches itself there. The address alone
is no proof: ClusterIPs under IPVS and what ip_nonlocal_bind allows are on every machine. All others ask node 0.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection, Sequence

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.authentication import NONCE_BYTES
from slipway.launch.rendezvous.client import GREETING_SECONDS, Client
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.connection_errors import MovedError, TryLaterError
from slipway.launch.rendezvous.link import Link, connect
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.rendezvous.rules import Stage
from slipway.launch.resolve.connectivity import BACKLOG, PortInUseError, is_loopback, loopback_address
from slipway.protocol.decoding import MalformedError

ADDRESSES = 4  # of a name, as many as a launcher connects to
POLL_SECONDS = 0.1  # between polls of `stopped`
IS_HOST = " Node 0 is the launcher whose machine has this address; --rdzv-conf is_host=true makes a launcher node 0."

Claimed = tuple[int, socket.socket | None]  # the node rank, and on node 0 the port that it listens on


def may_be_here(address: str, found: Collection[str], names: Sequence[str]) -> bool:
    """Whether MASTER_ADDR, which leads to the addresses `found`, may mean the machine with these `names`: its name, then its
    addresses but loopback.

    Every machine has loopback. It counts where it was typed, since all nodes are on one machine then; and where the name is this
    machine's own, for which Debian's /etc/hosts has 127.0.1.1.
    """
    own = address.partition(".")[0].lower() == names[0].partition(".")[0].lower()
    return any(one in names[1:] or (is_loopback(one) and (own or is_loopback(address))) for one in found)


class Claimant(Client):
    """A launcher that asks for its node rank, as patiently as one that joins."""

    def __init__(self, config: RendezvousConfig, ask: wire.Ask, *, may_lead: bool = True) -> None:
        """`may_lead`: whether it may be node 0."""
        super().__init__(config)
        self._ask_for, self._may_lead = ask, may_lead

    async def claim(self, info: NodeInfo, stopped: Callable[[], bool]) -> Claimed | None:
        """The rank; None as soon as `stopped`. Raises LaunchError: 76 after the time-out, 78 where node 0 is of another job."""
        claiming = asyncio.ensure_future(self._claim(info))
        try:
            while not claiming.done() and not stopped():
                await asyncio.wait((claiming,), timeout=POLL_SECONDS)
            return claiming.result() if claiming.done() else None
        finally:
            claiming.cancel()

    async def _claim(self, info: NodeInfo) -> Claimed:
        self._began = self._patient = asyncio.get_running_loop().time()
        while True:
            if self._may_lead and (listening := await self._lead_here()):
                return 0, listening
            try:
                _, link, place = await self._introduce(self.endpoint, info)
                link.cut()
                return place.node_rank, None
            except (OSError, MalformedError) as error:
                if not isinstance(error, MovedError | TryLaterError):
                    self.endpoint = self._config.endpoint  # whoever led elsewhere is gone
                await self._bear(error, info)

    async def _shake_hands(self, link: Link, info: NodeInfo) -> wire.Assigned:
        link.send(self._ask_for)
        answer = await link.receive()
        self._hear(Stage.BETWEEN, answer, link)
        if not isinstance(answer, wire.Assigned):
            raise MalformedError("no rank")
        return answer

    async def _lead_here(self) -> socket.socket | None:
        """Listen as node 0, if MASTER_ADDR leads to this launcher and to no other one; else None."""
        config, network = self._config, self._config.network
        try:
            found = await network.resolve(config.address)
            if not may_be_here(config.address, found, network.own_names()):
                return None
            listening = network.listen(config.port, loopback=loopback_address(config.address))
        except (OSError, PortInUseError):  # whoever has the port may be node 0: to connect to it shows what is wrong
            return None
        nonce = config.random.randbytes(NONCE_BYTES).hex()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = Link(reader, writer)
            link.send(wire.Greeting(nonce))
            await link.close()

        # Of a copy, since a server closes its socket, and nobody else may get the port before node 0 has begun.
        server = await asyncio.start_server(greet, sock=listening.dup(), backlog=BACKLOG)
        seen: list[bool | None] = [False]
        try:
            # Whoever listens first and looks then finds any other launcher that does the same.
            seen = await asyncio.gather(*(self._finds_itself(one, nonce) for one in found[:ADDRESSES]))
        finally:
            server.close()
            if not (leads := True in seen and False not in seen):
                listening.close()
        return listening if leads else None

    async def _finds_itself(self, address: str, nonce: str) -> bool | None:
        """Whether this launcher is what answers at an address; None where nothing does."""
        try:
            link = await connect((address,), self._config.port)
        except OSError:
            return None
        try:
            with contextlib.suppress(OSError, MalformedError):
                async with asyncio.timeout(GREETING_SECONDS):
                    return bool(await link.receive() == wire.Greeting(nonce))
            return False
        finally:
            link.cut()

    def _explain(self, kind: str, words: str, info: NodeInfo) -> str:
        return super()._explain(kind, words, info) + (
            IS_HOST if kind in ("refused", "unreachable", "timed out") else ""
        )
