"""Every launcher's side of the rendezvous, node 0's own included: find node 0, introduce itself, follow what it says."""

import asyncio
import hmac
import re
from collections.abc import Sequence

from slipway.launch.hangs.standing import Standing
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.codec import OtherProtocolError, stands_line
from slipway.launch.rendezvous.connection_errors import (
    ASTRAY,
    COMES_AND_GOES,
    Complaints,
    OtherJobError,
    SilentError,
    StalledError,
    TryLaterError,
    connection_failure,
    explain_connection,
)
from slipway.launch.rendezvous.link import Link, connect, send_all
from slipway.launch.rendezvous.messages import Card, Go
from slipway.launch.rendezvous.ring import Ring
from slipway.launch.rendezvous.terms import Terms
from slipway.launch.resolve.connectivity import is_loopback, without_link_local
from slipway.launch.verdict.cause import Cause
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CONFIGURATION, PEER, LaunchError
from slipway.protocol.outcomes import Word

GREETING_SECONDS = 10.0  # node 0's launcher greets in milliseconds; whatever is silent longer is something else
# Seconds between two tries: the first, the longest during the first QUICK_SECONDS, the longest after them.
PAUSES = (0.05, 0.7, 3.0)
QUICK_SECONDS = 15.0
QUIET_SECONDS = 3.0  # launchers rarely start in the same second, so first failures are not worth a line
MARGIN_SECONDS = 20.0  # how much later than node 0 itself a launcher gives up on it; testing the ring takes up to 15
STOPS = 100  # requests to stop that are kept; what asks for haste comes second
RUN_NAME = re.compile(r"(?!\.)[^/\0]{1,200}")  # becomes a folder's name: no path, nothing hidden


class Client:
    """One launcher in the rendezvous. Its coroutines run in one event loop; `news` may be read from any thread."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.news: Outcome | None = None
        self.heard: list[wire.Stopping] = []  # what other nodes were asked
        self.peers: list[wire.Peer] = []  # the launchers of this attempt, where they brought findings with them
        self.welcome = False  # whether node 0 was ever found
        self._complaints = Complaints()
        self._trouble = ("timed out", "no answer")
        self._addresses: tuple[str, ...] = ()  # that MASTER_ADDR leads to at the moment
        self._turn = 0  # which of them comes first: one may be dead, or somebody else's
        self._stop: wire.Stopping | None = None  # what this one was asked first
        self._link: Link | None = None
        self._following: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[Ending | Outcome]

    async def join(self, card: Card) -> Go:
        """Take part in one rendezvous until go. LaunchError where it fails."""
        await self.leave()
        self._complaints, self.peers = Complaints(), []
        began = patient = asyncio.get_running_loop().time()
        pause = PAUSES[0]
        async with Ring(card.node_rank, self._terms) as ring:
            while True:
                try:
                    link, welcome = await self._introduce(card, ring, patient + self._terms.timeout)
                    return await self._attend(link, welcome, card, ring)
                except (OSError, MalformedError) as error:
                    waited = asyncio.get_running_loop().time() - began
                    if isinstance(error, TryLaterError):
                        patient = began + waited  # the job lives and has no seat yet: nobody is missing
                    kind, words = connection_failure(error)
                    self._turn += kind in ASTRAY
                    self._complain(kind, words, card, waited)
                await asyncio.sleep(pause * self._terms.random.uniform(1, 4 / 3))
                soon = waited < QUICK_SECONDS or patient > began  # an elastic job's window may be short
                pause = min(pause * 1.5, PAUSES[1] if soon else PAUSES[2])

    async def report(self, outcome: Outcome) -> Ending | Verdict:
        """Tell node 0 how the run ended here, and wait for what it makes of that; without node 0 the verdict is our own."""
        if self._link is None:
            return judge((outcome,))
        self._link.send(wire.Report(outcome))
        ending = await asyncio.shield(self._ending)
        return ending if isinstance(ending, Ending) else judge((outcome, ending))

    async def watch(self) -> Ending | Verdict:
        """As a spare node, wait for what node 0 makes of the attempt; without node 0 the verdict is that it was lost."""
        ending = await asyncio.shield(self._ending)
        return ending if isinstance(ending, Ending) else judge((ending,))

    def stop(self, stop: wire.Stopping) -> None:
        """Tell node 0, now or as soon as it is found, that this launcher was asked to stop."""
        self._stop = self._stop or stop
        if self._link:
            self._link.send(stop)

    def compare(self, standings: Sequence[Standing] | None) -> None:
        """Tell node 0 where the ranks of this node stand, no faster than it reads; None: they move again."""
        if self._telling:
            self._telling.cancel()  # what is older is of no interest
        if self._link and standings is None:
            self._link.send(wire.Moves())
        elif self._link and standings:
            lines = [stands_line(standing, first=standing is standings[0]) for standing in standings]
            self._telling = asyncio.create_task(send_all(lines, self._link))

    async def leave(self) -> None:
        """Close the connection to node 0."""
        for task in (self._following, self._telling):
            if task:
                task.cancel()
        if self._link:
            await self._link.close()
        self._link = self._following = self._telling = self.news = None

    async def _introduce(self, card: Card, ring: Ring, deadline: float) -> tuple[Link, wire.Welcome]:
        """One try to connect and be welcomed. LaunchError where it will never be, or when time is up."""
        loop = asyncio.get_running_loop()
        if loop.time() > deadline:
            raise LaunchError(
                f"gave up after {self._terms.timeout:.0f} s; missing node rank 0: "
                + self._explain(*self._trouble, card),
                PEER,
            )
        greeted = False
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + GREETING_SECONDS)):
                self._addresses = ()
                self._addresses = without_link_local(
                    await self._terms.network.resolve(self._terms.address), self._terms.address
                )
                first = self._turn % len(self._addresses)
                link = await connect(self._addresses[first:] + self._addresses[:first], self._terms.port)
                try:
                    greeting = await link.receive()
                    greeted = True
                    welcome = await self._shake_hands(link, greeting, card, ring)
                except OtherProtocolError as error:
                    link.cut()
                    raise LaunchError(f"{error}. Start the same image on all nodes.", CONFIGURATION) from None
                except BaseException:
                    link.cut()
                    raise
        except TimeoutError:
            if greeted:
                raise StalledError from None
            raise
        return link, welcome

    async def _shake_hands(self, link: Link, greeting: object, card: Card, ring: Ring) -> wire.Welcome:
        if not isinstance(greeting, wire.Greeting):
            raise MalformedError("no greeting")
        proof = hmac.digest(self._terms.token.encode(), greeting.challenge.encode(), "sha256").hex()
        link.send(wire.Hello(proof, self._terms.process, self._terms.clock.time(), ring.port, ring.key, card))
        answer = await link.receive()
        if isinstance(answer, wire.Refused) and not answer.again:
            raise LaunchError(answer.reason, answer.code)
        if isinstance(answer, wire.Refused):
            raise OtherJobError(answer.reason) if answer.code == CONFIGURATION else TryLaterError(answer.reason)
        if not isinstance(answer, wire.Welcome):
            raise MalformedError("no welcome")
        return answer

    async def _attend(self, link: Link, welcome: wire.Welcome, card: Card, ring: Ring) -> Go:
        """Follow node 0 until go. OSError where the connection ends first; LaunchError where the rendezvous fails."""
        probing: set[asyncio.Task[None]] = set()
        self._link, self.welcome = link, True
        if self._stop:
            link.send(self._stop)
        try:
            async with asyncio.timeout(welcome.seconds + MARGIN_SECONDS):
                while not isinstance(message := await link.receive(welcome.heartbeat), wire.Start):
                    if isinstance(message, wire.End):
                        raise LaunchError("\n".join(message.lines), message.code)
                    if isinstance(message, wire.Waiting):
                        self._terms.say(message.line)
                    elif isinstance(message, wire.Ping):
                        link.send(wire.Pong())
                    elif isinstance(message, wire.Probe):
                        probing.add(asyncio.create_task(ring.probe(message, link)))
            go = self._read_start(message, link, card, ring)
        except BaseException:
            link.cut()
            self._link = None
            raise
        finally:
            for task in probing:
                task.cancel()
        self._ending = asyncio.get_running_loop().create_future()
        self._following = asyncio.create_task(self._follow(link, welcome))
        return go

    async def _follow(self, link: Link, welcome: wire.Welcome) -> None:
        """Until the next rendezvous: note what happens elsewhere, node 0's verdict, and its loss."""
        while True:
            try:
                message = await link.receive(welcome.heartbeat)
            except (OSError, MalformedError) as error:
                silence = welcome.heartbeat if isinstance(error, SilentError) else 0.0
                self.news = self.news or self._lost_master(connection_failure(error)[1], welcome.host, silence)
                if not self._ending.done():
                    self._ending.set_result(self.news)
                link.cut()
                return
            if isinstance(message, Ending):
                self._ending.set_result(message)
            elif isinstance(message, wire.News):
                self.news = self.news or message.outcome
            elif isinstance(message, wire.Peer) and len(self.peers) < self._terms.launchers:
                self.peers.append(message)
            elif isinstance(message, wire.Stopping) and len(self.heard) < STOPS:
                self.heard.append(message)
            elif isinstance(message, wire.Ping):
                link.send(wire.Pong())

    def _read_start(self, start: wire.Start, link: Link, card: Card, ring: Ring) -> Go:
        if not RUN_NAME.fullmatch(start.run):
            raise LaunchError(f"node 0 named a run that cannot be a folder: {start.run[:80]!r}", CONFIGURATION)
        towards = ring.neighbour if card.node_rank == 0 else link.peer
        # A name that leads node 0 to itself by loopback (127.0.1.1 in Debian's /etc/hosts) is no use to others, to whom its
        # processes may pass it on.
        address = self._terms.address if card.node_rank == 0 and is_loopback(link.peer) else link.peer
        interface = self._terms.network.interface_towards(towards, one_machine=start.one_machine)
        return Go(**vars(start), address=address, interface=interface)

    def _complain(self, kind: str, words: str, card: Card, waited: float) -> None:
        """Say what keeps this launcher from node 0: the cause of each kind every few minutes, and a short line in between."""
        if not (waited >= self._terms.timeout and kind == "timed out"):  # time being up is no trouble of its own
            self._trouble = (kind, words)
        if waited < QUIET_SECONDS:
            return
        if self._complaints.explains(kind, waited):
            back = "waiting for node 0 to come back: " if self.welcome and kind in COMES_AND_GOES else ""
            self._terms.say(back + self._explain(kind, words, card))
        elif kind == "not now" or not self._complaints.is_due(waited):
            return
        self._complaints.say(waited)
        if kind != "not now":
            self._terms.say(
                f"waiting for nodes: {self._terms.address}:{self._terms.port} {words} after {waited:.0f} s; missing node rank 0"
            )

    def _explain(self, kind: str, words: str, card: Card) -> str:
        """The cause of a failed connection to node 0, in a line."""
        terms, itself = self._terms, card.node_rank == 0
        return explain_connection(
            kind, words, terms.address, terms.port, card.runtime, self._addresses, itself=itself, met=self.welcome
        )

    def _lost_master(self, words: str, host: str, silence: float) -> Outcome:
        """Node 0's end, `silence` seconds ago."""
        return Outcome(
            0, host or self._terms.address, Word.LOST, self._terms.clock.time() - silence, cause=Cause(text=words)
        )
