"""The server of the rendezvous, of node 0 or its successor: accepts connections, refuses strangers, admits launchers and receives
their messages.
"""

import asyncio
import math
from collections.abc import Callable

from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous import rules
from slipway.launch.rendezvous.authentication import key_of
from slipway.launch.rendezvous.codec import encode
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.connection_errors import IN_A_MESH, MESH, SilentError
from slipway.launch.rendezvous.leadership import YIELD_SECONDS, Leadership, follows, may_lead
from slipway.launch.rendezvous.link import CLOSE_SECONDS, Link
from slipway.launch.rendezvous.membership import Member
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.rendezvous.rules import Act, State
from slipway.launch.resolve.connectivity import is_loopback
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CONFIGURATION, PEER

BEATS = 6  # pings within the time that counts as silence
HELLO_SECONDS = 10.0  # from connecting to a complete hello
PONG_SECONDS = 3.0  # that a member has to answer a ping if another claims its node rank; a living one answers at once
STRANGERS = 256  # connections without a hello beyond the expected ones; the oldest gives way
NOTES = 20  # different lines about strangers and newcomers
# That a launcher waits for the one that is to lead, between two attempts or until others vote for it, too.
ASK_SECONDS = HELLO_SECONDS / 2
TOGETHER_SECONDS = 1.0  # for the last launchers to ask, once those are enough
# From a verdict, and who leaves a job that goes on, to what follows.
Rule = Callable[[Verdict, tuple[int, ...]], Ending]


class Server:
    """What connections share. The coordinator of an attempt (coordinator.py) reads and changes its state."""

    def __init__(self, config: RendezvousConfig) -> None:
        self.config = config
        self.state = State()
        self.rule: Rule = lambda verdict, leaving: Ending(verdict)  # what node 0's launcher makes of a verdict
        self.leadership = Leadership(config)
        # To lead, after a pause in which another launcher does.
        self.offer: Callable[[float], None] = lambda pause: None
        self._changed = asyncio.Event()
        self._strangers: dict[str, dict[Link, None]] = {}  # by their address, each in the order in which they came
        self._pending = 0  # how many these are
        self._open: set[Link] = set()
        self._heard: dict[Link, float] = {}
        self._noted: set[str] = set()
        self._kept: dict[int, rules.Reservation] = {}  # node ranks, for who asked for them or had them last

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its end. Never raises."""
        link = Link(reader, writer)
        self._open.add(link)
        try:
            member = await self._examine(link)
            if member:
                await self._serve(link, member)
        except MalformedError as error:
            self._refuse(link, wire.Refused(CONFIGURATION, f"{error}."))
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
        """Note how the run ended on a node."""
        self.carry_out(rules.note_outcome(self.state, outcome))

    def carry_out(self, effects: rules.Effects) -> None:
        """Send and print what the rules say."""
        for effect in effects:
            if isinstance(effect, str):
                self.config.say(effect)
            elif effect.link:
                effect.link.send(effect.message)
            else:
                self.broadcast(effect.message, but=effect.but)
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

    async def elected(self, nonce: str) -> None:
        """Wait until as many launchers as an attempt needs ask this one to lead, itself among them: nobody else can lead then.
        Node 0 leads without that, too, after a while.
        """
        loop, config, voters = asyncio.get_running_loop(), self.config, self.leadership.voters
        seconds = math.inf if config.node_rank else YIELD_SECONDS
        await self.until(lambda: may_lead(config, voters(nonce, loop.time())), loop.time() + seconds)
        together = loop.time() + TOGETHER_SECONDS
        await self.until(lambda: len(voters(nonce, loop.time())) >= config.launchers - 1, together)
        self.leadership.remaining = frozenset()

    def disband(self) -> None:
        """Lead nobody any more: all launchers look for another one."""
        for link in rules.disband(self.state):
            link.cut()

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
        if isinstance(hello, wire.Ask):
            self._give_place(link, hello)
            return None
        if isinstance(hello, wire.Refused):  # it does not want this launcher to lead it
            raise MalformedError(hello.reason)
        if not isinstance(hello, wire.Hello):
            raise MalformedError("not a hello")
        if link.peer in MESH and hello.process != self.config.process and not is_loopback(self.config.address):
            self._refuse(link, wire.Refused(CONFIGURATION, f"{IN_A_MESH.format(peer=link.peer)}."), hello.info)
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
        state = self.state
        if state.running or not follows(self.config, led.info, state.membership, state.nonce):
            return
        self.leadership.follow(led, asyncio.get_running_loop().time())
        if self.state.membership:
            self._note(
                f"node {led.info.node_rank} ({led.info.host}) leads the job, which runs already: this node joins it"
            )
            self.broadcast(led)
            rules.disband(self.state)
            self.offer(YIELD_SECONDS)

    def _give_place(self, link: Link, ask: wire.Ask) -> None:
        """Answer a launcher that asks for a node rank, or say who leads; another launcher than node 0's that does not lead says
        nothing.
        """
        now, state = asyncio.get_running_loop().time(), self.state
        if state.membership is None and (redirect := self.leadership.redirect(now)):
            link.send(redirect)
        elif state.membership or not self.config.node_rank:
            answer = rules.give_place(self._kept, state.links, self.config, ask, now)
            if isinstance(answer, wire.Assigned):
                link.send(answer)
            elif answer.message:
                self._refuse(link, answer.message)

    def keep_places(self) -> None:
        """Keep the node ranks of those that are members now: they come back."""
        until = asyncio.get_running_loop().time() + rules.KEPT_SECONDS
        for rank in self.state.links.keys() & self._kept.keys():
            self._kept[rank] = self._kept[rank]._replace(until=until)

    async def _assess(self, link: Link, member: Member) -> Member | None:
        """Whether a launcher with the right token can be a member: do what the rules say until they admit it or do not."""
        hello, rank, now = member.hello, member.info.node_rank, asyncio.get_running_loop().time()
        if hello.frozen and self.config.node_rank and not self.state.running:
            return None  # it counts for nobody that is about to lead: Client.watch_freezes says why
        if self.leadership.vote(hello, now):
            self.wake()
        redirect = self.leadership.redirect(now)
        waited, alive = False, dict[Link | None, bool]()
        while True:
            older = self.state.links.get(rank)
            superseded = self.leadership.is_superseded(hello)
            reply = rules.assess(self.state, self.config, member, redirect, superseded, waited, alive.get(older))
            if reply.note:
                self._note(reply.note)
            if reply.act is Act.WAIT:  # the launcher gives up after HELLO_SECONDS
                await self.until(lambda: self.state.membership is not None, now + ASK_SECONDS)
            elif reply.act is Act.PING and older:
                alive[older] = await self._answers(older)
            elif reply.act is Act.REPLACE:
                self._remove(rank, "it does not answer, and another launcher has replaced it")
            else:
                break
            waited = True
        if reply.message:
            self._refuse(link, reply.message, hello.info)
        return member if reply.act is Act.ADMIT else None

    async def remove_silent(self, node_rank: int) -> None:
        """Remove a member that does not answer while nodes wait for each other."""
        link = self.state.links.get(node_rank)
        if link and not await self._answers(link) and self.state.links.get(node_rank) is link:
            self._remove(node_rank, "it does not answer")

    def _remove(self, node_rank: int, why: str) -> None:
        """Give up a launcher that does not answer, before its connection ends by itself."""
        link = self.state.links[node_rank]
        self._miss(node_rank, why, self._silence(link))
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
        self.leadership.joined(member.hello)
        until = loop.time() + rules.KEPT_SECONDS
        self._kept[node_rank] = rules.Reservation(member.hello.who or member.hello.process, until)
        self._heard[link] = loop.time()
        self.carry_out(rules.admit(self.state, self.config, member, link, loop.time()))
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
                self._miss(node_rank, ended, silence if silence > 2 * self.config.heartbeat / BEATS else 0.0)

    def _hear(self, message: object, member: Member) -> None:
        self.carry_out(rules.step(self.state, self.config, member, message))

    def _miss(self, node_rank: int, ended: str, silence: float) -> None:
        """A launcher's connection ended, `silence` seconds after its last sign of life."""
        if self.state.membership:  # another launcher may have the rank at once
            self._kept.pop(node_rank, None)
        else:  # between two attempts all leave, and come back
            self.keep_places()
        self.carry_out(rules.lose(self.state, self.config, node_rank, ended, self.config.clock.time() - silence))

    @property
    def idle(self) -> tuple[tuple[int, str], ...]:
        """The spare nodes that are here while an attempt runs, each with its host. May be called from another thread."""
        members, places = dict(self.state.membership.members if self.state.membership else {}), self.state.places
        return tuple((rank, members[rank].info.host) for rank in sorted(members) if places and rank not in places)

    def _refuse(self, link: Link, message: wire.Refused | wire.Led, info: NodeInfo | None = None) -> None:
        """Answer somebody who is not admitted, and say so here once per reason, if it is for good."""
        link.send(message)
        # With the code PEER it asks for another rank.
        if isinstance(message, wire.Refused) and not message.again and message.code != PEER:
            who = f"node rank {info.node_rank} ({info.host}) at {link.peer}" if info else link.peer
            self._note(f"refused {who}: {message.reason}")
            if info:
                self.state.refused = f"{info.host} was refused: {message.reason}"

    def _note(self, line: str) -> None:
        """Say something about somebody who came, but not for ever."""
        if line not in self._noted and len(self._noted) < NOTES:
            self._noted.add(line)
            self.config.say(line)
