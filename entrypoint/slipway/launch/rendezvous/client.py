"""Every launcher's side of the rendezvous, node 0's own included: find node 0 or the launcher that leads in its place, introduce
itself, follow what it says.
"""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.authentication import ForgedError, key_of
from slipway.launch.rendezvous.codec import OtherProtocolError, stack_dump_line
from slipway.launch.rendezvous.config import Endpoint, RendezvousConfig
from slipway.launch.rendezvous.connection_errors import (
    ASTRAY,
    COMES_AND_GOES,
    LOST,
    NAMELESS,
    Complaints,
    MovedError,
    OtherJobError,
    RankTakenError,
    SilentError,
    StalledError,
    TryLaterError,
    UnprovenError,
    connection_failure,
    explain_connection,
)
from slipway.launch.rendezvous.leadership import find_leaders
from slipway.launch.rendezvous.link import Link, connect, send_all
from slipway.launch.rendezvous.messages import SUCCESSORS, AttemptStart, NodeInfo
from slipway.launch.rendezvous.neighbour_check import NeighbourCheck
from slipway.launch.rendezvous.rules import Stage
from slipway.launch.resolve.connectivity import is_loopback, without_link_local
from slipway.launch.resolve.runtimes import runtime_of
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
# How much later than node 0 itself a launcher gives up on it; testing the neighbours takes up to 15 s.
MARGIN_SECONDS = 20.0
RETURN_SECONDS = 1.0  # for the one that led, which was lost, to be found again before a spare node is asked to lead
FROZEN_SECONDS = 3.0  # without a turn of the loop: a leader gives the rank of so silent a launcher to another one
STALE_SECONDS = 1.0  # after a launcher runs again, it reads what had arrived before
UNPROVEN_SECONDS = 15.0  # for which whoever answers in node 0's place may be somebody else, who goes away again
STOPS = 100  # requests to stop that are kept; what asks for haste comes second
NAMELESS_SECONDS = 30.0  # that node 0 looks for its own name: a resolver may start later than this launcher
RUN_NAME = re.compile(r"(?!\.)[^/\0]{1,200}")  # becomes a folder's name: no path, nothing hidden


Found = tuple[
    Endpoint, Link, Any
]  # where a launcher was answered, over which link, and the answer: a welcome, or a rank


class Client:
    """One launcher in the rendezvous. Its coroutines run in one event loop; `news` may be read from any thread."""

    def __init__(self, config: RendezvousConfig) -> None:
        self._config = config
        self.news: Outcome | None = None
        self.heard: list[wire.Stopping] = []  # what other nodes were asked
        self.peers: list[wire.Peer] = []  # the launchers of this attempt, where they brought findings with them
        self.welcome = False  # whether node 0 was ever found
        self.door = 0  # the port on which this launcher leads, where it has to
        # The node rank of the launcher that leads, and where it was found.
        self.leader, self.endpoint = 0, config.endpoint
        self._successors: list[wire.Successor] = []  # who leads if that one is lost
        self.lost_leader = False  # whether that one was, or left, at the end of the last attempt
        self._astray = asyncio.Event()  # set while node 0 cannot be reached
        self._offered = 0  # the highest number of an attempt that a leader has named: no other leader may give it again
        self._unproven_since = math.inf  # since when whoever answers where node 0 is found does not know the token
        self._thawed: float | None = None  # since when this launcher runs again, until a leader is heard
        self._began = 0.0  # when the search for node 0 began
        self._patient = 0.0  # when it was known last that it is not in vain
        self._pause = PAUSES[0]
        self._complaints = Complaints()
        self._trouble = ("timed out", "no answer")
        self._addresses: tuple[str, ...] = ()  # that MASTER_ADDR leads to at the moment
        self._turn = 0  # which of them comes first: one may be dead, or somebody else's
        self._stop: wire.Stopping | None = None  # what this one was asked first
        self._link: Link | None = None
        self._following: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[Ending | Outcome]
        self._neighbours: NeighbourCheck
        self._found: Endpoint  # where the launcher that has welcomed this one listens
        self._probing: set[asyncio.Task[None]] = set()

    async def join(self, info: NodeInfo) -> AttemptStart:
        """Take part in one rendezvous until the start. LaunchError where it fails."""
        await self.leave()
        self._complaints, self.peers = Complaints(), []
        self._began = self._patient = asyncio.get_running_loop().time()
        self._pause, self._unproven_since = PAUSES[0], math.inf
        async with NeighbourCheck(info.node_rank, self._config) as self._neighbours:
            while True:
                try:
                    endpoint, link, welcome = await self._find(info)
                    return await self._attend(endpoint, link, welcome, info)
                except (OSError, MalformedError) as error:
                    await self._bear(error, info)

    async def _find(self, info: NodeInfo) -> Found:
        """Be welcomed by node 0, or by the launcher that leads in its place. MovedError: elsewhere; LaunchError as `join`."""
        leaders = find_leaders(self._config, self.endpoint, self._successors, lost=self.lost_leader)
        asked = [self._ask(endpoint, info, pause) for endpoint, pause in leaders]
        seek = self._seek(info, [endpoint for endpoint, _ in leaders])
        if not asked:
            return await seek
        tasks = [asyncio.create_task(search) for search in (seek, *asked)]
        found: Found | None = None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = sorted((task for task in tasks if task.done()), key=lambda task: task.exception() is not None)
            found = ended[0].result()
            return found
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:  # two may have welcomed this launcher at once
                if task.done() and not task.cancelled() and not task.exception() and task.result() is not found:
                    task.result()[1].cut()

    async def _seek(self, info: NodeInfo, endpoints: Sequence[Endpoint]) -> Found:
        """Be welcomed where node 0 is found. MovedError where it names another place than these, at which others search."""
        while True:
            try:
                return await self._introduce(self._config.endpoint, info)
            except (OSError, MalformedError) as error:
                if isinstance(error, MovedError) and self.endpoint not in endpoints:
                    raise
                await self._bear(error, info)

    async def _ask(self, endpoint: Endpoint, info: NodeInfo, pause: float) -> Found:
        """Be welcomed at another place: by the launcher that led last or, once node 0 cannot be reached or that one is lost, by
        one that leads in its place.
        """
        if endpoint != self.endpoint:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETURN_SECONDS if self.lost_leader else None):
                    await self._astray.wait()
            await asyncio.sleep(pause)
        while True:
            try:
                return await self._introduce(endpoint, info)
            except TryLaterError:
                self._patient = asyncio.get_running_loop().time()
            except (OSError, MalformedError):
                pass  # it is of no interest, as long as node 0 is looked for
            await asyncio.sleep(PAUSES[1] * self._config.random.uniform(0.1, 1))

    async def _bear(self, error: Exception, info: NodeInfo) -> None:
        """Say what keeps this launcher from node 0, and wait until it may try again."""
        now = asyncio.get_running_loop().time()
        waited = now - self._began
        if isinstance(error, TryLaterError):
            self._patient = now  # the job lives and this launcher has no part in it yet: nobody is missing
        kind, words = connection_failure(error)
        self._turn += kind in ASTRAY
        if kind != "unproven":
            self._unproven_since = math.inf
        if kind in LOST and not self._astray.is_set():
            self._astray.set()
            if self._successors and (self.lost_leader or self.endpoint == self._config.endpoint):
                one, config = self._successors[0], self._config
                config.say(
                    f"node 0 cannot be reached ({words}); node {one.node_rank} ({one.host}) leads the job in its place once "
                    f"{config.nodes} of {config.launchers} launchers ask it to"
                    f"{'' if self._thawed is None else '; this one was frozen, may have been replaced, and does not count'}"
                )
        self._complain(kind, words, info, waited)
        await asyncio.sleep(self._pause * self._config.random.uniform(1, 4 / 3))
        soon = waited < QUICK_SECONDS or self._patient > self._began  # an elastic job's window may be short
        self._pause = min(self._pause * 1.5, PAUSES[1] if soon else PAUSES[2])

    async def watch_freezes(self) -> None:
        """Note when this launcher did not run: another one may have been started in its place, and it cannot know of that.

        Two groups of launchers cannot train at the same time because each has more than half of all ranks. This is true only if
        each rank counts once. So a launcher that was frozen neither asks a spare node to lead nor leads, until a leader has
        welcomed it: a leader knows who else has its rank.
        """
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(FROZEN_SECONDS / 3)
            if loop.time() > before + FROZEN_SECONDS:
                self._thawed = loop.time()

    def _admitted(self, welcome: wire.Welcome, stale: float = 0.0) -> None:
        """A leader other than this launcher admits it, if its message is not `stale`."""
        now = asyncio.get_running_loop().time()
        if self._thawed is not None and welcome.node_rank != self._config.node_rank and now >= self._thawed + stale:
            self._thawed = None

    async def announce(self, info: NodeInfo) -> None:
        """Where this launcher leads in node 0's place, tell whoever listens where node 0 is found."""
        with suppress(OSError, MalformedError):
            async with asyncio.timeout(GREETING_SECONDS):
                link = await connect(await self._config.network.resolve(self._config.address), self._config.port)
                try:
                    await self._authenticate(link)
                    link.send(wire.Led(info, *self.endpoint))
                    await link.close()
                finally:
                    link.cut()

    @property
    def leads(self) -> bool:
        """Whether this launcher leads the others."""
        return self.leader == self._config.node_rank

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

    def compare(self, dumps: Sequence[StackDump] | None) -> None:
        """Tell node 0 where the ranks of this node stand, no faster than it reads; None: they move again."""
        if self._telling:
            self._telling.cancel()  # what is older is of no interest
        if self._link and dumps is None:
            self._link.send(wire.Moving())
        elif self._link and dumps:
            lines = [stack_dump_line(dump, first=dump is dumps[0]) for dump in dumps]
            self._telling = asyncio.create_task(send_all(lines, self._link))

    async def leave(self) -> None:
        """Close the connection to node 0."""
        for task in (self._following, self._telling):
            if task:
                task.cancel()
        if self._link:
            await self._link.close()
        self._link = self._following = self._telling = self.news = None

    async def _introduce(self, endpoint: Endpoint, info: NodeInfo) -> Found:
        """Try once to connect and be welcomed. Raises LaunchError if no further try can help, or the time is over."""
        loop, deadline = asyncio.get_running_loop(), self._patient + self._config.timeout
        if loop.time() > deadline:
            raise LaunchError(
                f"gave up after {self._config.timeout:.0f} s{_missing(info)}: {self._explain(*self._trouble, info)}",
                PEER,
            )
        greeted = False
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + GREETING_SECONDS)):
                if endpoint == self._config.endpoint:
                    self._addresses = ()
                addresses = without_link_local(await self._config.network.resolve(endpoint.address), endpoint.address)
                if endpoint == self._config.endpoint:
                    self._addresses = addresses
                first = self._turn % len(addresses)
                link = await connect(addresses[first:] + addresses[:first], endpoint.port)
                try:
                    await self._authenticate(link)
                    greeted = True
                    self._unproven_since = math.inf
                    welcome = await self._shake_hands(link, info)
                except OtherProtocolError as error:
                    link.cut()
                    final = LaunchError(f"{error}. Start the same image on all nodes.", CONFIGURATION)
                    # Without a token nobody proves anything; with one, it may be somebody else who says so.
                    raise (
                        self._doubt(UnprovenError(str(error)), final) if self._config.token and not greeted else final
                    ) from None
                except UnprovenError as error:
                    await link.close()  # after the reason was sent to it
                    final = LaunchError(self._explain(*connection_failure(error), info), CONFIGURATION)
                    raise self._doubt(error, final) from None
                except BaseException:
                    link.cut()
                    raise
        except TimeoutError:
            if greeted:
                raise StalledError from None
            raise
        return endpoint, link, welcome

    async def _authenticate(self, link: Link) -> None:
        """Have the other side prove that it knows the token, before this one does. Raises UnprovenError."""
        try:
            await link.authenticate(
                key_of(self._config.token), self._config.random, listens=False, addresses=self._config.network.own_names
            )
        except ForgedError as error:
            raise UnprovenError(str(error)) from None

    def _doubt(self, error: UnprovenError, final: LaunchError) -> UnprovenError | LaunchError:
        """What becomes of an answer without a proof: somebody who only came first must not end this launcher, and a launcher
        whose token is wrong must not wait for long until the `final` error.
        """
        now = asyncio.get_running_loop().time()
        self._unproven_since = min(self._unproven_since, now)
        if now < self._unproven_since + UNPROVEN_SECONDS:
            return error
        return final

    async def _shake_hands(self, link: Link, info: NodeInfo) -> Any:
        me, now = self._config.process, self._config.clock.time()
        known = info, self.door, self._thawed is not None, self._offered, self._config.who
        link.send(wire.Hello(me, now, self._neighbours.port, self._neighbours.key, *known))
        answer = await link.receive()
        self._hear(Stage.BETWEEN, answer, link)
        if not isinstance(answer, wire.Welcome):
            raise MalformedError("no welcome")
        return answer

    async def _attend(self, endpoint: Endpoint, link: Link, welcome: wire.Welcome, info: NodeInfo) -> AttemptStart:
        """Follow node 0 until the start. OSError where the connection ends first; LaunchError where the rendezvous fails."""
        self._link, self._found = link, endpoint
        self._admitted(welcome)
        if self._stop:
            link.send(self._stop)
        try:
            async with asyncio.timeout(welcome.seconds + MARGIN_SECONDS):
                message = None
                while not isinstance(message, wire.Start):
                    message = await link.receive(welcome.heartbeat)
                    self._hear(Stage.GATHERING, message, link)
            self.leader, self.endpoint = welcome.node_rank, endpoint
            start = self._read_start(message, link, info, self._neighbours)
        except BaseException as error:
            link.cut()
            self._link = None
            if welcome.node_rank and isinstance(error, ConnectionResetError):
                raise TryLaterError(f"node {welcome.node_rank} ({welcome.host}) no longer leads the job") from None
            raise
        finally:
            for task in self._probing:
                task.cancel()
            self._probing.clear()
        self._astray.clear()
        self._ending = asyncio.get_running_loop().create_future()
        self._following = asyncio.create_task(self._follow(link, welcome))
        return start

    async def _follow(self, link: Link, welcome: wire.Welcome) -> None:
        """Until the next rendezvous: note what happens elsewhere, node 0's verdict, and its loss."""
        self.lost_leader = False
        while True:
            try:
                message = await link.receive(welcome.heartbeat)
            except (OSError, MalformedError) as error:
                self.lost_leader = self.lost_leader or not self._ending.done()
                at = self._config.clock.time() - (welcome.heartbeat if isinstance(error, SilentError) else 0.0)
                host, cause = welcome.host or self._config.address, Cause(text=connection_failure(error)[1])
                self.news = self.news or Outcome(self.leader, host, Word.LOST, at, cause=cause)
                if not self._ending.done():
                    self._ending.set_result(self.news)
                self._config.wake()
                link.cut()
                return
            self._admitted(welcome, STALE_SECONDS)
            self._hear(Stage.RUNNING, message, link)

    def _hear(self, stage: Stage, message: object, link: Link) -> None:
        """Do what the rule for a message says, if there is one at this stage."""
        if rule := MESSAGES.get(type(message), {}).get(stage):
            rule(self, message, link)

    def _be_welcomed(self, welcome: wire.Welcome, link: Link) -> None:
        """The launcher waits for `start`."""
        self.welcome = True

    def _be_refused(self, refused: wire.Refused, link: Link) -> None:
        """The launcher ends with the code, or asks for another rank; with `again`, it searches further."""
        if not refused.again and refused.code == PEER:
            raise RankTakenError(refused.reason, PEER)
        if not refused.again:
            raise LaunchError(refused.reason, refused.code)
        raise OtherJobError(refused.reason) if refused.code == CONFIGURATION else TryLaterError(refused.reason)

    def _move(self, led: wire.Led, link: Link) -> None:
        """The launcher searches where this message says."""
        self.leader, self.endpoint = led.info.node_rank, Endpoint(led.address, led.port)
        raise MovedError(f"node {self.leader} ({led.info.host}) leads the job, at {led.address}:{led.port}")

    def _print(self, waiting: wire.Waiting, link: Link) -> None:
        """The line is printed."""
        self._config.say(waiting.line)

    def _answer(self, ping: wire.Ping, link: Link) -> None:
        """`pong` is sent."""
        link.send(wire.Pong())

    def _probe(self, probe: wire.Probe, link: Link) -> None:
        """The launcher connects to its neighbour, and sends `probed`."""
        self._offered = max(self._offered, probe.attempt)
        # The leader has proved itself at this address; the name may lead elsewhere by now.
        there = self._found.address if is_loopback(link.peer) else link.peer
        probe = replace(probe, address=probe.address or there)
        self._probing.add(asyncio.create_task(self._neighbours.probe(probe, link)))

    def _end(self, end: wire.End, link: Link) -> None:
        """The lines are printed, and the launcher ends with the code."""
        raise LaunchError("\n".join(end.lines), end.code)

    def _start(self, start: wire.Start, link: Link) -> None:
        """The attempt starts; a spare node waits for its end."""
        self._offered = max(self._offered, start.attempt)  # a spare node was not probed

    def _finish(self, ending: Ending, link: Link) -> None:
        """The launcher ends, or joins again after the pause."""
        self.lost_leader = self.leader in ending.leaving
        if not self._ending.done():  # a leader that says it twice
            self._ending.set_result(ending)

    def _add_successor(self, successor: wire.Successor, link: Link) -> None:
        """The launcher notes whom it asks to lead if the leader is lost."""
        known = [] if successor.first else self._successors[: SUCCESSORS - 1]
        self._successors = [*known, replace(successor, address=successor.address or self.endpoint.address)]

    def _take_news(self, news: wire.News, link: Link) -> None:
        """The launcher ends its workers; the first message counts."""
        self.news = self.news or news.outcome
        self._config.wake()

    def _add_peer(self, peer: wire.Peer, link: Link) -> None:
        """The launcher keeps the findings."""
        if len(self.peers) < self._config.launchers:
            self.peers.append(peer)

    def _take_stop(self, stop: wire.Stopping, link: Link) -> None:
        """The launcher stops its workers."""
        if len(self.heard) < STOPS:
            self.heard.append(stop)

    def _read_start(self, start: wire.Start, link: Link, info: NodeInfo, neighbours: NeighbourCheck) -> AttemptStart:
        if not RUN_NAME.fullmatch(start.run):
            raise LaunchError(f"node 0 named a run that cannot be a folder: {start.run[:80]!r}", CONFIGURATION)
        towards = neighbours.neighbour if self.leads else link.peer
        # A name that leads node 0 to itself by loopback (127.0.1.1 in Debian's /etc/hosts) is no use to others, to whom its
        # processes may pass it on.
        address = self.endpoint.address if self.leads and is_loopback(link.peer) else link.peer
        interface = self._config.network.interface_towards(towards, one_machine=start.one_machine)
        return AttemptStart(**vars(start), leader=self.leader, address=address, interface=interface)

    def _complain(self, kind: str, words: str, info: NodeInfo, waited: float) -> None:
        """Say what keeps this launcher from node 0: the cause of each kind every few minutes, and a short line in between."""
        if not (waited >= self._config.timeout and kind == "timed out"):  # time being up is no trouble of its own
            self._trouble = (kind, words)
        # Node 0 looks for itself, so no other node is missing. Of Kubernetes' names some appear late.
        nameless = (
            info.node_rank == 0 and kind in NAMELESS and not (self.welcome or runtime_of(info.runtime).has_services)
        )
        if nameless and waited >= NAMELESS_SECONDS:
            raise LaunchError(self._explain(kind, words, info), PEER if kind == "no DNS" else CONFIGURATION)
        if waited < QUIET_SECONDS and not nameless:
            return
        if self._complaints.explains(kind, waited):
            back = "waiting for node 0 to come back: " if self.welcome and kind in COMES_AND_GOES else ""
            self._config.say(back + self._explain(kind, words, info))
        elif kind == "not now" or not self._complaints.is_due(waited):
            return
        self._complaints.say(waited)
        if kind != "not now" and not nameless:
            self._config.say(
                f"waiting for nodes: {self._config.address}:{self._config.port} {words} after {waited:.0f} s{_missing(info)}"
            )

    def _explain(self, kind: str, words: str, info: NodeInfo) -> str:
        """The cause of a failed connection to node 0, in a line."""
        config = self._config
        own = config.network.own_names() if info.node_rank == 0 else ()
        return explain_connection(
            kind, words, config.address, config.port, info.runtime, self._addresses, own=own, met=self.welcome
        )


def _missing(info: NodeInfo) -> str:
    """Who is missing at MASTER_ADDR: nobody for node 0 itself, which cannot reach its own address."""
    return "" if info.node_rank == 0 else "; missing node rank 0"


# What a message of the one that leads does: before it has answered the hello, until the start, and from the start on.
MESSAGES: Mapping[type, Mapping[Stage, Callable[[Client, Any, Link], None]]] = {
    wire.Welcome: {Stage.BETWEEN: Client._be_welcomed},
    wire.Refused: {Stage.BETWEEN: Client._be_refused},
    wire.Led: {Stage.BETWEEN: Client._move, Stage.GATHERING: Client._move},
    wire.Waiting: {Stage.GATHERING: Client._print},
    wire.Probe: {Stage.GATHERING: Client._probe},
    wire.End: {Stage.GATHERING: Client._end},
    wire.Start: {Stage.GATHERING: Client._start},
    wire.Successor: {Stage.RUNNING: Client._add_successor},
    wire.Peer: {Stage.RUNNING: Client._add_peer},
    wire.News: {Stage.RUNNING: Client._take_news},
    wire.Stopping: {Stage.RUNNING: Client._take_stop},
    Ending: {Stage.RUNNING: Client._finish},
    wire.Ping: {Stage.GATHERING: Client._answer, Stage.RUNNING: Client._answer},
}
