"""The server of the rendezvous, of node 0 or its successor: accepts connections, refuses strangers, admits launchers and receives
their messages.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.authentication import key_of
from slipway.launch.rendezvous.codec import encode
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.connection_errors import IN_A_MESH, MESH, SilentError
from slipway.launch.rendezvous.link import CLOSE_SECONDS, Link
from slipway.launch.rendezvous.membership import Member, Membership, fits, has_missed, was_replaced
from slipway.launch.rendezvous.messages import SUCCESSORS, NodeInfo
from slipway.launch.resolve.connectivity import is_loopback
from slipway.launch.resolve.topology import SPARE
from slipway.launch.verdict.cause import Cause
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CODE_OF, CONFIGURATION, PEER
from slipway.protocol.outcomes import Word

BEATS = 6  # pings within the time that counts as silence
HELLO_SECONDS = 10.0  # from connecting to a complete hello
PONG_SECONDS = 3.0  # for a member whose node rank another launcher claims too
STRANGERS = 256  # connections without a hello beyond the expected ones; the oldest gives way
RANKS = 1024  # of a node, at most
NOTES = 20  # different lines about strangers and newcomers
ASK_SECONDS = (
    HELLO_SECONDS / 2
)  # that a launcher waits for the one that is to lead, between two attempts or until others ask, too
ASKED_SECONDS = ASK_SECONDS + 2  # for which it counts as one that asks, until it asks again
TOGETHER_SECONDS = 1.0  # for the last launchers to ask, once those are enough
LED_SECONDS = 15.0  # for which it counts that another launcher leads the job; it says so more often
# From a verdict, and who leaves a job that goes on, to what follows.
Rule = Callable[[Verdict, tuple[int, ...]], Ending]


@dataclass
class State:
    """What belongs to one attempt, and to the waiting before it; made anew for each.

    `membership` is None between two attempts, `deadline` of the rendezvous, by the loop's clock; `odd_since` is when the first
    launcher came that does not fit; `stopping` has who was asked to stop since the rendezvous began. Once those
    `awaited` are here, and enough, nobody else need be waited for. `places` has the nodes that run, or are about to, by their
    ranks and in the order of their places; `start` is what they were told.
    """

    membership: Membership | None = None
    running: bool = False
    nonce: str = ""  # of the job, once it runs
    deadline: float = math.inf
    odd_since: float = math.inf
    probed: dict[int, wire.Probed] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failed: bool = False  # whether one of them is bad
    stopping: dict[int, wire.Stopping] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    refused: str = ""  # the last launcher that was, and why: it may be a missing node
    awaited: set[int] = field(default_factory=set)
    places: dict[int, int] = field(default_factory=dict)
    start: wire.Start | None = None
    processes: int = 0  # of each node
    dumps: dict[int, tuple[StackDump, ...]] = field(default_factory=dict)  # of nodes that stand still
    # Of nodes that have not reported all their ranks yet.
    telling: dict[int, tuple[StackDump, ...]] = field(default_factory=dict)

    def start_of(self, node_rank: int) -> wire.Start:
        """What a launcher receives at the start: its place, or that it is a spare node."""
        assert self.start
        place = self.places.get(node_rank, SPARE)
        return replace(self.start, group_rank=place, notes=() if place == SPARE else self.start.notes)

    @property
    def lost(self) -> set[int]:
        """The node ranks that went away without a word while the attempt ran."""
        return {rank for rank, outcome in self.outcomes.items() if outcome.word == Word.LOST}


class Server:
    """What connections share. The coordinator of an attempt (coordinator.py) reads and changes its state."""

    def __init__(self, config: RendezvousConfig) -> None:
        self.config = config
        self.state = State()
        self.rule: Rule = lambda verdict, leaving: Ending(verdict)  # what node 0's launcher makes of a verdict
        self.changes = 0  # how often launchers became members or left
        self.round = 0  # of probes
        self.stayed: frozenset[int] = frozenset()  # who goes on after others left: nobody else need be waited for
        self.successors: set[int] = set()  # the node ranks of spare nodes that can lead if this launcher is lost
        self.led: wire.Led | None = (
            None  # which launcher leads the job in node 0's place, as it told this one, on node 0
        )
        self.yields: Callable[[], None] = lambda: None  # what node 0's launcher does then
        self._led_at = -math.inf
        self._asking: dict[
            int, tuple[str, float]
        ] = {}  # who asks this launcher to lead, by rank: the job's nonce, and when
        # The launchers that were members, each by its last hello, by their node rank, the newest last.
        self._holders: dict[int, list[wire.Hello]] = {}
        self._changed = asyncio.Event()
        self._strangers: dict[str, dict[Link, None]] = {}  # by their address, each in the order in which they came
        self._pending = 0  # how many these are
        self._open: set[Link] = set()
        self._heard: dict[Link, float] = {}
        self._noted: set[str] = set()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its end. Never raises."""
        link = Link(reader, writer)
        self._open.add(link)
        try:
            member = await self._examine(link)
            if member:
                await self._serve(link, member)
        except MalformedError as error:
            self._refuse(link, f"{error}.")
        except OSError:
            pass
        finally:
            self._open.discard(link)
            self._heard.pop(link, None)
            self.wake()
            await link.close()

    async def until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Wait until something changed so that `done`, or until the deadline; whether it is done."""
        while not done():
            self._changed.clear()
            try:
                async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                    await self._changed.wait()
            except TimeoutError:
                return done()
        return True

    def wake(self) -> None:
        """Something changed: let whoever waits look again."""
        self._changed.set()

    def broadcast(self, message: object, *, but: int | None = None) -> None:
        """Send a message to all launchers that are here."""
        line = encode(message)
        for node_rank, link in self.state.links.items():
            if node_rank != but:
                link.send_line(line)

    def take(self, outcome: Outcome) -> None:
        """Note how the run ended on a node (the first word counts), and warn the others of the first that ended badly.

        When one node fails, all report: to pass on each report to all would take the square of their number in messages.
        """
        if outcome.node_rank in self.state.outcomes:
            return
        self.state.outcomes[outcome.node_rank] = outcome
        if not outcome.good and not self.state.failed:
            self.state.failed = True
            self.broadcast(wire.News(outcome), but=outcome.node_rank)
        self.wake()

    def dumps(self) -> tuple[StackDump, ...] | None:
        """Where all ranks stand, once those of every node stand still or are through. May be called from another thread."""
        state = self.state
        membership, dumps, outcomes = state.membership, dict(state.dumps), dict(state.outcomes)
        if not (state.running and membership and dumps) or state.failed:
            return None
        found: list[StackDump] = []
        for node_rank, place in dict(state.places).items():
            if node_rank in outcomes:
                ranks = range(place * state.processes, (place + 1) * state.processes)
                found += (StackDump(rank, node_rank, "has left") for rank in ranks)
            elif node_rank in dumps:
                found += dumps[node_rank]
            else:
                return None
        return tuple(found)

    def correct(self, outcome: Outcome) -> None:
        """Node 0's own outcome is another one after all: it was through, and found that the others hang."""
        if self.state.running:
            self.state.outcomes.pop(outcome.node_rank, None)
            self.take(outcome)

    def outlives(self, leaving: Collection[int]) -> bool:
        """Whether the job goes on when these nodes leave: with their replacements, or an elastic one with enough others, node
        0 among them, or with a spare node that leads in its place.
        """
        if any(stop.word != Word.STOPPED for stop in self.state.stopping.values()):
            return False  # its user stopped it for good
        remain = (len(self.state.membership.ranks) if self.state.membership else 0) - len(leaving)
        noticed = all(rank in self.state.stopping and self.state.stopping[rank].notice for rank in leaving)
        if self.config.replaced or (noticed and self.config.awaits):
            return remain > 0 or self.state.membership is None  # between two attempts everybody else remains
        if self.config.node_rank in leaving and (self.successors <= {*leaving} or not self.state.running):
            return False
        if self.config.spares:
            return not self.state.running or self.has_enough(leaving)
        return self.config.enough < self.config.nodes and (self.config.enough <= remain or not self.state.running)

    def has_enough(self, leaving: Collection[int] = ()) -> bool:
        """Whether enough launchers are here for another attempt, spare ones among them, once those leave."""
        return len(self.state.links.keys() - {*leaving}) >= self.config.enough

    def asking(self, nonce: str) -> set[int]:
        """The node ranks of this job's launchers that ask this one to lead, since they cannot reach node 0."""
        since = asyncio.get_running_loop().time() - ASKED_SECONDS
        return {rank for rank, (theirs, at) in self._asking.items() if at > since and theirs in ("", nonce)}

    async def be_asked(self, nonce: str, seconds: float = math.inf) -> None:
        """Wait until as many launchers as an attempt needs ask this one to lead, itself among them: nobody else can lead then.
        Node 0 leads without that, too, and waits for so many `seconds` at most.
        """
        loop, config = asyncio.get_running_loop(), self.config
        await self.until(lambda: config.may_lead(self.asking(nonce)), loop.time() + seconds)
        await self.until(lambda: len(self.asking(nonce)) >= config.launchers - 1, loop.time() + TOGETHER_SECONDS)
        self.stayed = frozenset()

    def answer(self) -> None:
        """An attempt begins: whoever asked this launcher to lead before has found one that does."""
        self._asking.clear()

    def scatter(self) -> None:
        """Lead nobody any more: all launchers look for another one."""
        links, self.state.links, self.state.membership = self.state.links, {}, None
        for link in links.values():
            link.cut()

    def name_successors(self) -> None:
        """While an attempt runs, tell all launchers which spare nodes lead if this one is lost."""
        membership, places = self.state.membership, self.state.places
        if not (self.config.succeeds and self.state.running and membership):
            return
        spares = [
            member for rank, member in sorted(membership.members.items()) if rank not in places and member.hello.door
        ]
        self.successors = {member.info.node_rank for member in spares}
        for member in spares[:SUCCESSORS]:
            where = member.info.node_rank, member.info.host, member.address, member.hello.door
            self.broadcast(wire.Successor(*where, first=member is spares[0]))

    async def beat(self) -> None:
        """Show everybody here that we live, and make them show it."""
        while True:
            self.broadcast(wire.Ping())
            await asyncio.sleep(self.config.heartbeat / BEATS)

    async def close(self) -> None:
        """Send what is queued, and close each connection once its launcher has closed it: a connection that is closed while the
        launcher still sends is reset, and the last messages to it may be lost.
        """
        for link in self._open:
            link.end()
        await self.until(lambda: not self._open, asyncio.get_running_loop().time() + CLOSE_SECONDS)
        await asyncio.gather(*(link.close() for link in self._open))

    async def _examine(self, link: Link) -> Member | None:
        """Greet, hear the hello, and find out whether it can be a member; None where it was refused."""
        self._make_room(link)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await link.authenticate(key_of(self.config.token), self.config.random, listens=True)
                sent = self.config.clock.time()
                hello = await link.receive()
        except TimeoutError:
            raise MalformedError(f"no hello within {HELLO_SECONDS:.0f} s") from None
        finally:
            self._forget(link)
        if isinstance(hello, wire.Led):
            self._give_way(hello)
            return None
        if isinstance(hello, wire.Refused):  # it does not want this launcher to lead it
            raise MalformedError(hello.reason)
        if not isinstance(hello, wire.Hello):
            raise MalformedError("not a hello")
        if link.peer in MESH and hello.process != self.config.process and not is_loopback(self.config.address):
            self._refuse(link, f"{IN_A_MESH.format(peer=link.peer)}.", hello.info)
            return None
        # The hello was written between the proof and now: half the round trip is the best guess, as NTP does it.
        offset = hello.clock - (sent + self.config.clock.time()) / 2
        # Whoever is on this machine is reached where node 0 is: at the address that the others know, MASTER_ADDR.
        here = is_loopback(link.peer) or hello.process == self.config.process
        return await self._assess(link, Member(hello, None if here else link.peer, offset))

    def _make_room(self, link: Link) -> None:
        """Note a connection without a hello. If there are too many, the oldest from the address with the most gives way: somebody
        who opens thousands of connections keeps only launchers of the own machine out.
        """
        self._strangers.setdefault(link.peer, {})[link] = None
        self._pending += 1
        if self._pending > self.config.launchers + STRANGERS:
            most = max(self._strangers.values(), key=lambda links: len(links))
            oldest = next(iter(most))
            self._forget(oldest)  # at once: the next stranger may come before its connection notices
            oldest.cut()

    def _forget(self, link: Link) -> None:
        """A connection has said hello, or has ended."""
        links = self._strangers.get(link.peer, {})
        if link in links:
            del links[link]
            self._pending -= 1
        if not links:
            self._strangers.pop(link.peer, None)

    def _give_way(self, led: wire.Led) -> None:
        """On node 0: another launcher leads this job. This one follows it, with all that came here, unless an attempt runs."""
        membership = self.state.membership
        if self.config.node_rank or self.state.running or not self._may_be_led_by(led.info):
            return
        self.led, self._led_at = led, asyncio.get_running_loop().time()
        if membership:
            self._note(
                f"node {led.info.node_rank} ({led.info.host}) leads the job, which runs already: this node joins it"
            )
            self.broadcast(self.led)
            self.state.links, self.state.membership = {}, None
            self.yields()

    def _may_be_led_by(self, info: NodeInfo) -> bool:
        """Whether a launcher with this info can lead this job: one of another rank, in a job with spare nodes that has begun. Its
        nonce is that of the job, if any launcher that is here knows it.
        """
        membership = self.state.membership
        if not (self.config.succeeds and 0 < info.node_rank < self.config.launchers and info.nonce):
            return False
        known = self.state.nonce or (membership.nonce if membership else "")
        return known in ("", info.nonce) and (membership is None or is_same_job(info, membership.own, self.config))

    async def _assess(self, link: Link, member: Member) -> Member | None:
        """Whether a launcher with the right token can be a member."""
        hello, now = member.hello, asyncio.get_running_loop().time()
        if hello.frozen and self.config.node_rank and not self.state.running:
            return None  # it counts for nobody that is about to lead: Client.watch_freezes says why
        if self.config.succeeds and 0 <= hello.info.node_rank < self.config.launchers:
            self._asking[hello.info.node_rank] = hello.info.nonce, now
            self.wake()
        if self.led and self.state.membership is None and now - self._led_at < LED_SECONDS:
            link.send(self.led)
            return None
        # The launcher gives up after HELLO_SECONDS.
        there = await self.until(lambda: self.state.membership is not None, now + ASK_SECONDS)
        if not there or self.state.membership is None:
            if not self.config.node_rank:
                self._refuse(link, "node 0 is between two attempts.", again=True)
            return None
        membership, node_rank = self.state.membership, hello.info.node_rank
        known = self.state.nonce or membership.nonce or membership.own.nonce
        if hello.info.nonce and known and hello.info.nonce != known:
            link.send(
                wire.Refused(CONFIGURATION, f"another job, of node 0 on {self.state.membership.own.host}", again=True)
            )
            self._note(f"refused node {node_rank} ({hello.info.host}), which belongs to another job")
            return None
        if reason := self.state.membership.objection(hello):
            self._refuse(link, reason, hello.info)
            return None
        rival, older = self.state.membership.rival(hello), self.state.links.get(node_rank)
        stale = rival is not None and not self.state.running and was_replaced(rival.hello, hello)
        if rival and older and not stale and await self._answers(older):
            taken = f"RANK={node_rank} is taken by {rival.info.host}"
            if self.state.stopping:  # a scheduler may replace what it stops before that has saved
                self._refuse(link, f"{taken}, which is stopping.", again=True)
            else:
                self._refuse(link, f"{taken}; every node needs a RANK of its own.", hello.info)
            return None
        if self.config.succeeds and self._has_successor(hello):
            self._refuse(link, "another launcher has taken the place of this one.", again=True)
            return None
        if rival and older:
            if stale:
                self._note(
                    f"node {node_rank} ({rival.info.host}) was frozen or cut off; another launcher of this rank replaces it"
                )
            self._remove(rival, older, "it does not answer, and another launcher has replaced it")
        running, waits = self.state.running or self.state.membership is None, bool(self.config.spares)
        if waits and (self.state.running or node_rank >= self.config.nodes) and (why := membership.misfit(member)):
            self._refuse(link, why, hello.info)
            return None
        if running and not (waits and self.state.running and node_rank not in self.state.places):
            self._refuse(link, "the job is running without this node; waiting for its next attempt.", again=True)
            self._note(f"node {node_rank} ({hello.info.host}) is present, and joins at the next attempt")
            return None
        return member

    def _has_successor(self, hello: wire.Hello) -> bool:
        """Whether another launcher has taken the place of this one, because it was a member later, or in an attempt that this one
        missed. That other one may be in a group of launchers that cannot be reached, and each rank counts once.
        """
        holders = self._holders.get(hello.info.node_rank, [])
        places = [place for place, one in enumerate(holders) if one.process == hello.process]
        later = holders[places[0] + 1 :] if places else []
        return any(not has_missed(one, hello) for one in later) or any(has_missed(hello, one) for one in holders)

    async def remove_silent(self, node_rank: int) -> None:
        """Remove a member that does not answer while nodes wait for each other."""
        link, member = (
            self.state.links.get(node_rank),
            self.state.membership and self.state.membership.members.get(node_rank),
        )
        if link and member and not await self._answers(link):
            self._remove(member, link, "it does not answer")

    def _remove(self, member: Member, link: Link, why: str) -> None:
        """Give up a launcher that does not answer, before its connection ends by itself."""
        if self.state.links.get(member.info.node_rank) is link:
            self._miss(member, why, self._silence(link))
            link.cut()

    def _silence(self, link: Link) -> float:
        """The seconds since the last message from there."""
        now = asyncio.get_running_loop().time()
        return now - self._heard.get(link, now)

    async def _answers(self, link: Link) -> bool:
        """Whether the launcher at the other end is alive."""
        asked = asyncio.get_running_loop().time()
        link.send(wire.Ping())
        return await self.until(lambda: self._heard.get(link, 0.0) > asked, asked + PONG_SECONDS)

    async def _serve(self, link: Link, member: Member) -> None:
        """Make a launcher a member, and receive its messages for as long as it stays."""
        loop, node_rank = asyncio.get_running_loop(), member.info.node_rank
        if self.state.membership is None:
            return
        if older := self.state.links.pop(node_rank, None):
            older.cut()
        self.state.membership.admit(member)
        others = [one for one in self._holders.get(node_rank, []) if one.process != member.hello.process]
        self._holders[node_rank] = [*others, member.hello]
        self.state.links[node_rank], self._heard[link] = link, loop.time()
        self.changes += not self._is_idle(node_rank)
        if not self.state.membership.fits(member):
            self.state.odd_since = min(self.state.odd_since, loop.time())
        link.send(
            wire.Welcome(
                max(0.0, self.state.deadline - loop.time()),
                self.state.membership.own.host,
                self.config.heartbeat,
                self.config.node_rank,
            )
        )
        if self.state.running:
            link.send(self.state.start_of(node_rank))
            self.config.say(f"node {node_rank} ({member.info.host}) waits as a spare node")
            self.name_successors()
        self.wake()
        ended = "its connection closed"
        try:
            while True:
                message = await link.receive(self.config.heartbeat)
                self._heard[link] = loop.time()
                if self.state.links.get(node_rank) is link:
                    self._hear(message, member)
                self.wake()
        except SilentError as error:
            ended = str(error)
        except MalformedError as error:
            ended = str(error)
            raise
        finally:
            if self.state.links.get(node_rank) is link:
                # A living launcher answers each ping. A machine that starts again after a power cut closes the connection only
                # when something is sent to it.
                silence = self._silence(link)
                self._miss(member, ended, silence if silence > 2 * self.config.heartbeat / BEATS else 0.0)

    def _hear(self, message: object, member: Member) -> None:
        node_rank = member.info.node_rank
        if isinstance(message, wire.Probed) and message.round == self.round:
            self.state.probed[node_rank] = message
        elif isinstance(message, wire.Report) and self.state.running and node_rank in self.state.places:
            own = message.outcome
            self.take(replace(own, node_rank=node_rank, host=member.info.host, time=own.time - member.offset))
        elif isinstance(message, wire.Stuck):
            known = () if message.first else self.state.telling.get(node_rank, ())
            known = (*known, replace(message.dump, node_rank=node_rank))[:RANKS]
            self.state.telling[node_rank] = known
            if len(known) == self.state.processes:
                self.state.dumps[node_rank] = known
        elif isinstance(message, wire.Moving):
            self.state.dumps.pop(node_rank, None)
        elif isinstance(message, wire.Stopping) and not (self.state.running and self._is_idle(node_rank)):
            self._hear_stop(replace(message, node_rank=node_rank, host=member.info.host), member)

    def _hear_stop(self, stop: wire.Stopping, member: Member) -> None:
        node_rank, before = stop.node_rank, self.state.stopping.get(stop.node_rank)
        if before and before.notice != stop.notice and stop.word == Word.STOPPED:
            return  # a machine that a notice named goes down with a SIGTERM: what came first counts
        self.state.stopping[node_rank] = stop
        if not self.outlives(self.state.stopping):
            self.broadcast(stop, but=node_rank)
        elif not self.state.running:
            del self.state.stopping[node_rank]
            self.state.links[node_rank].send(wire.End(CODE_OF[stop.word], (f"{stop.text}: it leaves the job",)))
            self._miss(member, "it leaves")  # at once: a start that still counted on it would fail

    def _miss(self, member: Member, ended: str, silence: float = 0.0) -> None:
        """A launcher's connection ended: a lost node during the run, a member less before it.

        It was lost `silence` seconds ago, with its last sign of life: its peers may have failed since, because of that.
        """
        node_rank = member.info.node_rank
        del self.state.links[node_rank]
        idle = self._is_idle(node_rank)
        self.changes += not idle
        if self.state.running and not idle:
            now = self.config.clock.time()
            self.take(Outcome(node_rank, member.info.host, Word.LOST, now - silence, cause=Cause(text=ended)))
        elif self.state.membership:
            self.state.membership.vacate(node_rank)
            self.state.awaited.discard(node_rank)
            if self.state.running:
                left = len(self.state.links) - len(self.state.places.keys() & self.state.links.keys())
                self.config.say(
                    f"spare node {node_rank} ({member.info.host}) is lost: {ended}; spare nodes that are left: {left}"
                )
                self.name_successors()
        self.wake()

    def _is_idle(self, node_rank: int) -> bool:
        """Whether this node has no part in the attempt that runs or is about to, as a spare node."""
        return bool(self.config.spares and self.state.places) and node_rank not in self.state.places

    @property
    def idle(self) -> tuple[tuple[int, str], ...]:
        """The spare nodes that are here while an attempt runs, each with its host. May be called from another thread."""
        members, places = dict(self.state.membership.members if self.state.membership else {}), self.state.places
        return tuple((rank, members[rank].info.host) for rank in sorted(members) if places and rank not in places)

    def _refuse(self, link: Link, reason: str, info: NodeInfo | None = None, *, again: bool = False) -> None:
        """Answer somebody who is not admitted, and say so here once per reason."""
        link.send(wire.Refused(PEER if again else CONFIGURATION, reason, again))
        if not again:
            who = f"node rank {info.node_rank} ({info.host}) at {link.peer}" if info else link.peer
            self._note(f"refused {who}: {reason}")
            if info:
                self.state.refused = f"{info.host} was refused: {reason}"

    def _note(self, line: str) -> None:
        """Say something about somebody who came, but not for ever."""
        if line not in self._noted and len(self._noted) < NOTES:
            self._noted.add(line)
            self.config.say(line)


def is_same_job(info: NodeInfo, own: NodeInfo, config: RendezvousConfig) -> bool:
    """Whether the launcher with this info belongs to the job that the launcher with the `own` info starts or takes part in."""
    jobs, nonces = {info.job, own.job} - {None}, {info.nonce, own.nonce} - {""}
    return len(jobs) < 2 and len(nonces) < 2 and fits(info, own, config.allow_uneven)
