"""The part of the launcher that leads one attempt, node 0's or its successor's: gather the launchers, compare them, let each test
the connection to its neighbour, start, and give one verdict.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous import rules
from slipway.launch.rendezvous.codec import encode
from slipway.launch.rendezvous.connection_errors import (
    CAUSE_SECONDS,
    connection_failure,
    explain_ring,
    explain_service,
    pause_after,
    service_name,
)
from slipway.launch.rendezvous.leadership import REDIRECT_SECONDS
from slipway.launch.rendezvous.link import send_all
from slipway.launch.rendezvous.membership import Difference, Membership, draw_table, find_differences, fits
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.rendezvous.neighbour_check import PROBE_SECONDS
from slipway.launch.rendezvous.rules import State
from slipway.launch.rendezvous.server import Server
from slipway.launch.resolve.runtimes import runtime_of
from slipway.launch.verdict.block import ENDINGS
from slipway.launch.verdict.cause import Cause
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.protocol.errors import CODE_OF, CONFIGURATION, EXITS, PEER, LaunchError
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import one_line, rank_ranges

FIRST_LINE_SECONDS = 3.0
ASK_SECONDS = 30.0  # after which node 0 asks, once, whether as many nodes are to come
RESOLVE_SECONDS = 10.0  # that a name server has to answer
SUCCEED_SECONDS = 3.0  # that a successor waits for those that asked it to lead; some may have found node 0 meanwhile
SETTLE_SECONDS = 5.0  # after the first launcher that does not fit, so that the table shows the others too
TROUBLES = 8  # unreachable neighbours that are listed
AGAIN_SECONDS = (
    3.0  # between two tries to reach neighbours, where a network opens itself some seconds after a node has come
)


class Coordinator:
    """One attempt, from the point of view of the launcher that leads."""

    def __init__(self, server: Server, info: NodeInfo) -> None:
        """`info` is its own."""
        self._server, self._config, config = server, server.config, server.config
        self._open_by = math.inf  # when neighbours must reach each other
        self._membership = Membership(
            own=info, nodes=config.nodes, least=config.enough, process=config.process, allow_uneven=config.allow_uneven,
            doubtful=config.doubtful, spares=config.spares,
        )  # fmt: skip
        self._state = State(self._membership)
        # Who was there before, or at first all nodes but spare ones.
        nodes = range(config.nodes if config.spares else 0)
        self._state.expected = {*(server.leadership.remaining or nodes)}

    async def run(self) -> None:
        """Lead the attempt to its verdict, or tell all launchers why it cannot start."""
        server, loop = self._server, asyncio.get_running_loop()
        self._began = loop.time()
        self._state.deadline = self._began + (SUCCEED_SECONDS if self._config.node_rank else self._config.timeout)
        server.keep_places()
        server.state = self._state
        server.wake()
        try:
            start = None
            while start is None:
                if not await self._gather():
                    server.disband()
                    return
                notes = self._compare()
                if self._membership.enough:
                    start = await self._survey(notes)
                else:  # who did not fit has left again
                    self._state.odd_since = math.inf
            server.carry_out(rules.begin(self._state, self._config, start))
            if self._membership.own.findings:
                members = [self._membership.members[rank] for rank in self._state.places]
                lines = [encode(wire.Peer(member.info, member.offset)) for member in members]
                await asyncio.gather(*(send_all(lines, link) for link in [*self._state.links.values()]))
            await self._finish()
        except LaunchError as error:
            server.carry_out(rules.end(self._state, wire.End(error.code, tuple(str(error).splitlines()))))

    async def _gather(self) -> bool:
        """Wait for the launchers, saying who is missing. LaunchError: 76 after the time-out, 75 or 79 after a stop. False where a
        successor waits in vain.
        """
        server, loop = self._server, asyncio.get_running_loop()
        line = self._began + FIRST_LINE_SECONDS
        ask = doubt = self._began + ASK_SECONDS
        while not self._settled():
            self._heed_stops()
            if loop.time() >= self._state.deadline:
                if self._config.node_rank:
                    return self._membership.enough
                await self._look_for_service()
                gave_up = f"{self._describe()}; gave up after {self._config.timeout:.0f} s."
                gave_up += f" Node 0 listens on port {self._config.port}."
                raise LaunchError(f"{gave_up} {self._state.refused or self._membership.question}".rstrip(), PEER)
            if loop.time() >= line:
                server.broadcast(wire.Waiting(f"{self._describe()} ({self._until()})"))
                if under_way := self._membership.under_way:
                    server.broadcast(wire.Waiting(under_way))
                if loop.time() >= ask and (question := self._state.refused or self._membership.question):
                    ask = math.inf
                    server.broadcast(wire.Waiting(question))
                if loop.time() >= doubt:
                    doubt = loop.time() + CAUSE_SECONDS
                    await self._look_for_service()
                line = loop.time() + pause_after(loop.time() - self._began)
            enough = self._state.enough_since
            settles = (self._state.odd_since + SETTLE_SECONDS, enough + self._config.window, enough + REDIRECT_SECONDS)
            wake = min(line, self._state.deadline, *(moment for moment in settles if moment > loop.time()))
            await server.until(lambda: self._settled() or bool(self._state.stopping), wake)
        self._heed_stops()
        return True

    async def _look_for_service(self) -> None:
        """Say where nobody else can find this node by its name, which its own /etc/hosts knows: its Service is not there."""
        name = service_name(self._config.address) if runtime_of(self._membership.own.runtime).has_services else ""
        if not name or self._membership.members.keys() - {self._config.node_rank}:  # others have found it
            return
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                await self._config.network.resolve(name)
        except socket.gaierror as error:
            self._server.broadcast(wire.Waiting(explain_service(name, connection_failure(error))))
        except OSError:  # no answer in time tells nothing
            return

    def _heed_stops(self) -> None:
        """A job of which a node was asked to stop does not start. LaunchError (75 or 79)."""
        for stop in self._state.stopping.values():
            code, how = CODE_OF[stop.word], ENDINGS[stop.word]
            raise LaunchError(
                f"{how}: {stop.text} came while the nodes waited for each other.\n"
                f"  exit code   {code} (a scheduler should {EXITS[code].then})",
                code,
            )

    def _settled(self) -> bool:
        now, remaining = asyncio.get_running_loop().time(), self._server.leadership.remaining
        return rules.is_settled(self._state, self._config, remaining, now, SETTLE_SECONDS)

    def _describe(self) -> str:
        return self._membership.describe(asyncio.get_running_loop().time() - self._began)

    def _until(self) -> str:
        """How long the waiting may go on."""
        if self._state.enough_since < math.inf:
            left = self._state.enough_since + self._config.window - asyncio.get_running_loop().time()
            return f"enough to start in {max(left, 0):.0f} s"
        return f"for at most {self._config.timeout:.0f} s"

    def _compare(self) -> tuple[str, ...]:
        """Warnings about what should agree; LaunchError (78) where something that must does not."""
        if newest := self._membership.newest:
            self._turn_away(newest.info)
        elif misfit := self._misfit():
            raise misfit
        return self._notes()

    def _turn_away(self, veteran: NodeInfo) -> None:
        """Send newcomers away that do not fit a job which is under way; LaunchError (78) where it is the one that leads."""
        odd = [
            rank for rank, info in self._membership.infos.items() if not fits(info, veteran, self._config.allow_uneven)
        ]
        misfit = self._misfit() if odd else None
        if misfit is None:
            return
        lead = self._config.node_rank
        for rank in self._state.links.keys() - {lead} if lead in odd else odd:
            link = rules.turn_away(self._state, rank)
            if rank in odd:
                lines = (
                    *str(misfit).splitlines(),
                    "The job is already running: start this node with the same command as the others.",
                )
                link.send(wire.End(misfit.code, lines))
                self._config.say(f"refused node {rank}, which does not match the running job: {lines[0]}")
            else:
                link.cut()  # it goes on looking for a node 0
        if lead in odd:
            raise misfit

    def _misfit(self) -> LaunchError | None:
        """Why the nodes that are here cannot run together, with the table of what differs; None where they can."""
        new = self._membership.newest is None
        problems = [
            f"node {rank} ({info.host}): {problem}"
            for rank, info in self._membership.infos.items()
            if (problem := info.problem or (info.occupied if new else ""))
        ]
        if problems:
            return LaunchError("\n".join(problems[:TROUBLES]), CONFIGURATION)
        if musts := [difference for difference in self._differences() if difference.must]:
            names = ", ".join(difference.name for difference in musts)
            table = draw_table(self._differences(), self._membership.hosts)
            return LaunchError("\n".join((f"the nodes of this job differ in {names}:", *table)), CONFIGURATION)
        return None

    def _differences(self) -> tuple[Difference, ...]:
        offsets = {rank: member.offset for rank, member in self._membership.members.items()}
        return find_differences(self._membership.infos, offsets, self._config.allow_uneven)

    def _notes(self) -> tuple[str, ...]:
        """Warnings about what should agree and does not."""
        differences = self._differences()
        table = draw_table(differences, self._membership.hosts) if differences else ()
        return ("warning: the nodes of this job differ:", *table) if table else ()

    async def _survey(self, notes: tuple[str, ...]) -> wire.Start | None:
        """Let every launcher visit its neighbour; LaunchError (78) where one cannot.

        None where somebody came or left meanwhile, or froze or was cut off: that is no mistake in a configuration. Nor need it be
        one where the network may still open itself.

        Two leaders never start attempts with the same number. A leader names the number first, and starts the attempt once all
        launchers of it have answered. Whoever leads next needs one of these, since both attempts have a launcher in common: that
        one tells the number, even where the start was heard by nobody else, and the next leader takes a higher one.
        """
        server, loop = self._server, asyncio.get_running_loop()
        state, changes, number = self._state, self._state.changes, self._membership.next_attempt

        def changed() -> bool:
            return state.changes != changes or bool(state.stopping)

        with self._shared_file() as name:
            server.carry_out(rules.probe(state, name, number))
            deadline = loop.time() + 2 * PROBE_SECONDS
            await server.until(lambda: len(state.probed) == len(state.places) or changed(), deadline)
        if not changed():
            suspects = {rank for first in self._troubled() for rank in (first, state.neighbours[first])}
            await asyncio.gather(*(server.remove_silent(rank) for rank in suspects))
        if changed() or number != self._membership.next_attempt:  # a spare node may know of more attempts
            return None
        troubled = self._troubled()  # some may have answered meanwhile
        if not troubled:
            return self._start(notes, number)
        opening = runtime_of(self._membership.own.runtime).opening
        if loop.time() >= self._open_by:  # who was only frozen or cut off for a while has answered by the second time
            raise self._cut_off(troubled)
        self._open_by = min(self._open_by, loop.time() + opening)
        again = f"Networks may need a while; trying for {opening:.0f} s." if opening else "Trying once more."
        server.broadcast(wire.Waiting(f"{self._trouble(troubled[0])} {again}"))
        await server.until(changed, loop.time() + AGAIN_SECONDS)
        return None

    def _troubled(self) -> list[int]:
        return [rank for rank in self._state.places if self._answer(rank).trouble]

    def _cut_off(self, troubled: list[int]) -> LaunchError:
        """Which of the nodes cannot reach their neighbour, and what may be done about it."""
        lines = [self._trouble(rank) for rank in troubled[:TROUBLES]]
        more = [f"… and {len(troubled) - TROUBLES} more"] if len(troubled) > TROUBLES else []
        return LaunchError("\n".join((*lines, *more, explain_ring(self._membership.own.runtime))), CONFIGURATION)

    def _answer(self, node_rank: int) -> wire.Probed:
        return self._state.probed.get(node_rank, wire.Probed(self._state.round, "its launcher did not answer", False))

    def _trouble(self, node_rank: int) -> str:
        here, there = (self._membership.members[rank] for rank in (node_rank, self._state.neighbours[node_rank]))
        address = there.address or "MASTER_ADDR"
        return (
            f"node {node_rank} ({here.info.host}) cannot connect to node {there.info.node_rank} ({there.info.host}) "
            f"at {address}, port {there.hello.port}: {self._answer(node_rank).trouble}."
        )

    def _start(self, notes: tuple[str, ...], number: int) -> wire.Start:
        everybody = self._membership.members
        newest = (self._membership.newest or everybody[self._config.node_rank]).info
        members = {rank: everybody[rank] for rank in self._state.places}
        seeing = [rank for rank in members if self._answer(rank).sees]
        if 1 < len(seeing) < len(members):
            notes += (
                f"warning: only nodes {rank_ranges(seeing)} share a run directory; each keeps its own snapshots.",
            )
        return wire.Start(
            attempt=number,
            run=self._membership.run,
            nodes=len(members),
            group_rank=0,
            processes=min(member.info.processes for member in members.values()),
            port=self._config.network.free_port(self._config.port + 1),
            shared=len(seeing) == len(members),
            one_machine=all(member.address is None for member in members.values()),
            tries=newest.tries,
            failures=newest.failures,  # of one who was there: a newcomer has no history of its own
            reached=newest.reached,
            ledger=newest.ledger,
            snapshot=max(
                (step for member in members.values() if (step := _step(member.info)) is not None), default=None
            ),
            notes=tuple(one_line(note)[:200] for note in (*notes, *self._place_notes())),
            nonce=self._membership.nonce or self._config.random.randbytes(8).hex(),
        )

    def _place_notes(self) -> Iterator[str]:
        """Which nodes take the places of others, and which wait as spare ones."""
        if not self._config.spares:
            return
        members, newest = self._membership.members, self._membership.newest
        for rank, place in self._state.places.items():
            if newest and members[rank].info.place != place:
                yield f"node {rank} ({members[rank].info.host}) takes place {place} of {self._config.nodes} in the job"
        waiting = ", ".join(f"{rank} ({members[rank].info.host})" for rank in members if rank not in self._state.places)
        yield f"spare nodes: {waiting}" if waiting else "no spare node is present; one may join at any time"

    @contextlib.contextmanager
    def _shared_file(self) -> Iterator[str]:
        """A file with a name that nobody can guess, in the folder of runs, as long as the launchers look for it."""
        path = self._config.folder / f".slipway-rendezvous-{self._config.random.randbytes(8).hex()}"
        with contextlib.suppress(OSError):  # a folder that cannot be written is shared with nobody
            self._config.folder.mkdir(parents=True, exist_ok=True)
            path.touch()
        try:
            yield path.name
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    async def _finish(self) -> None:
        """Gather the outcomes, judge, and tell all. Once one failed, who does not tell in time counts as lost."""
        server = self._server
        await server.until(lambda: self._all_told() or self._state.failed, math.inf)
        await server.until(self._all_told, asyncio.get_running_loop().time() + self._config.patience)
        now, silence = self._config.clock.time(), Cause(text="its launcher did not report in time how it ended")
        for rank in self._state.places:  # who has reported keeps that outcome
            server.take(Outcome(rank, self._membership.members[rank].info.host, Word.LOST, now, cause=silence))
        if self._config.node_rank in self._state.lost:
            # It was frozen, and missed what others, even its own launcher, told it. So each of them decides by its own rule.
            server.leadership.remaining = frozenset()
            server.disband()
            return
        verdict = judge(self._state.outcomes.values())
        leaving = tuple(sorted({*self._state.stopping, *verdict.unhealthy}))
        ending = server.rule(verdict, leaving if rules.outlives(self._state, self._config, leaving) else ())
        gone = {*ending.leaving} | (self._state.lost if self._config.spares else set())
        stay = self._state.places.keys() - gone
        server.leadership.remaining = frozenset(stay) if ending.leaving or self._config.spares else frozenset()
        server.carry_out(rules.end(self._state, ending))

    def _all_told(self) -> bool:
        return len(self._state.outcomes) == len(self._state.places)


def _step(info: NodeInfo) -> int | None:
    """The newest snapshot of this job on a node that took part in it."""
    return info.snapshot if info.tries else None
