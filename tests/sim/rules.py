"""What must always hold in a simulation, checked at the event that could break it. Each rule is one method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.launch.hangs.hang import Hang
from slipway.launch.rendezvous.messages import AttemptStart, NodeInfo
from slipway.launch.resolve.topology import SPARE
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome
from slipway.process.folder_lock import TOUCH
from slipway.protocol.errors import CONFIGURATION
from slipway.protocol.outcomes import Word
from slipway.protocol.snapshots import newest_step

if TYPE_CHECKING:
    from virtual_launcher import Launcher, Order, Team
    from world import World

BEAT = 12.0 / 6  # seconds between two heartbeats (Order.environ)
SLACK = 0.1  # seconds by which clocks of two nodes are compared wrongly at most, with the latencies of the network
LATE = 3.0  # seconds after being thawed within which a launcher must notice that it was replaced


class BrokenRuleError(Exception):
    """Something happened that must never happen."""


@dataclass(frozen=True)
class Harm:
    """What befell a node, and between which moments others notice that it did."""

    order: str
    rank: int
    word: str  # what becomes of it: FAILED or LOST
    earliest: float
    latest: float


@dataclass
class Attempt:
    """What is known of one attempt of one job."""

    order: str
    number: int
    places: dict[int, Launcher] = field(default_factory=dict)  # by their place among the nodes
    run: str = ""
    nodes: int = 0
    begun: float = 0.0
    ruling: Ending | None = None  # node 0's
    reports: dict[int, tuple[float, Outcome]] = field(default_factory=dict)  # when nodes reported, and what
    told: set[int] = field(default_factory=set)  # the node ranks whose launchers heard of it


@dataclass
class Known:
    """What is known of one launcher."""

    nonce: str = ""
    run: str = ""
    attempt: Attempt | None = None
    news: Outcome | None = None
    thawed: float = 0.0


class Rules:
    """The rules of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: dict[tuple[str, int], Attempt] = {}  # by nonce and number
        self._harms: list[Harm] = []
        self._known: dict[Launcher, Known] = defaultdict(Known)
        self._newest: dict[Path, Attempt] = {}  # that a run directory has seen
        self._writers: dict[Path, Launcher] = {}
        self._visits: set[tuple[str, str]] = set()  # who reached whose neighbour since the last start
        self._training: dict[str, Team] = {}
        self.lossless: set[str] = set()  # jobs to which nothing happens that may lose a step
        self._highest: dict[str, int] = {}  # step that a job has done
        self._turn = 0  # of the launcher that has found out its rank last

    def fail(self, text: str) -> None:
        """End the simulation: a rule was broken."""
        error = BrokenRuleError(f"after {self._world.loop.time():.3f} s: {text}")
        self._world.loop.trouble.append(error)
        raise error

    def visits(self, visitor: str, neighbour: str) -> None:
        """A launcher reached its neighbour's listener."""
        self._visits.add((visitor, neighbour))

    def goes(self, launcher: Launcher, info: NodeInfo, start: AttemptStart) -> None:
        """A launcher was told to start an attempt."""
        known, key = self._known[launcher], (start.nonce, start.attempt)
        attempt = self.attempts.setdefault(
            key, Attempt(launcher.order.name, start.attempt, {}, start.run, start.nodes, self._world.loop.time())
        )
        self._world.log(
            launcher.process.name,
            f"start: attempt {start.attempt} of {start.run}, {start.group_rank} of {start.nodes}, nonce {start.nonce}",
        )
        if attempt.order != launcher.order.name:
            self.fail(f"{launcher.process.name} takes part in {attempt.order}, another job")
        if known.nonce not in ("", start.nonce):
            self.fail(f"{launcher.process.name} took part in job {known.nonce}, and is now in {start.nonce}")
        if known.run not in ("", start.run):
            self.fail(f"{launcher.process.name} worked on {known.run}, and now works on {start.run}")
        if attempt.run != start.run or attempt.nodes != start.nodes:
            self.fail(
                f"attempt {start.attempt} is of {attempt.run} on {attempt.nodes} nodes and of {start.run} on {start.nodes}"
            )
        if not launcher.order.least <= start.nodes <= launcher.order.nodes:
            self.fail(f"{start.nodes} nodes start, which is not what was ordered")
        attempt.told.add(launcher.rank)
        if start.group_rank == SPARE:  # it knows of the attempt, and has no part in it
            known.nonce, known.run, known.attempt, known.news = start.nonce, start.run, attempt, None
            return
        if start.group_rank in attempt.places:
            self.fail(f"place {start.group_rank} of attempt {start.attempt} is taken twice")
        if any(other.rank == launcher.rank for other in attempt.places.values()):
            self.fail(f"two launchers of node {launcher.rank} are in attempt {start.attempt}")
        self._grows(launcher, known, info, attempt)
        attempt.places[start.group_rank] = launcher
        self._meet(attempt)
        known.nonce, known.run, known.attempt, known.news = start.nonce, start.run, attempt, None

    def _grows(self, launcher: Launcher, known: Known, info: NodeInfo, attempt: Attempt) -> None:
        """The number of an attempt is higher than any that its launchers and their disks have seen."""
        for before in (known.attempt, self._newest.get(launcher.disk / attempt.run)):
            if before and before is not attempt and before.number >= attempt.number:
                self.fail(f"attempt {attempt.number} follows attempt {before.number} on {launcher.process.name}")
        if attempt.number <= info.attempt:
            self.fail(
                f"attempt {attempt.number} follows attempt {info.attempt}, which {launcher.process.name} knows of"
            )

    def _meet(self, attempt: Attempt) -> None:
        """All nodes of an attempt are known: each of them has reached the next one."""
        if len(attempt.places) < attempt.nodes:
            return
        names = [attempt.places[place].process.name for place in range(attempt.nodes)]
        for place, name in enumerate(names):
            neighbour = names[(place + 1) % len(names)]
            if (name, neighbour) not in self._visits:
                self.fail(f"attempt {attempt.number} started, and {name} never reached {neighbour}")

    def placed(self, launcher: Launcher) -> None:
        """A launcher has found out its rank: node 0 is where the job's name leads to."""
        here = launcher.world.network.names[launcher.order.name] == launcher.address
        if (launcher.rank == 0) != (here and launcher.slot == 0):
            self.fail(f"{launcher.process.name} is node {launcher.rank}")
        self._turn += 1
        launcher.turn = self._turn

    def begins(self, launcher: Launcher, run: Run) -> None:
        """The workers of a node are started."""
        attempt = self._known[launcher].attempt
        assert attempt
        self._newest[launcher.disk / run.path.name] = attempt

    def resumes(self, members: Sequence[tuple[Launcher, Run]], step: int) -> None:
        """All workers of an attempt are here: they resume from the newest snapshot that any node has."""
        newest = max((newest_step(run.path) or 0 for _, run in members), default=0)
        if step < newest:
            self.fail(f"the training begins at step {step}, and there is a snapshot of step {newest}")
        name = members[0][0].order.name
        if name in self.lossless and step < self._highest.get(name, 0):
            self.fail(f"the training begins at step {step}, and {name} had done step {self._highest[name]}")

    def steps(self, team: Team) -> None:
        """The training made a step: no other attempt of the job trains at the same time."""
        other = self._training.get(team.order.name)
        if other and other is not team and other.whole and not other.finished:
            self.fail(f"two attempts of {team.order.name} train at the same time")
        self._training[team.order.name] = team
        self._highest[team.order.name] = max(team.step, self._highest.get(team.order.name, 0))

    def writes(self, launcher: Launcher, run: Run) -> None:
        """A launcher works on its node's folder: nobody else does."""
        folder = launcher.disk / run.path.name / f"node-{launcher.rank}"
        before = self._writers.get(folder)
        if before and before is not launcher and not before.done and before.turn > launcher.turn:
            late = self._world.loop.time() - self._known[launcher].thawed
            if late > LATE:
                self.fail(
                    f"{launcher.process.name} still works on {folder.name} of {run.path.name}, {late:.1f} s after {before.process.name} took it"
                )
            return
        self._writers[folder] = launcher

    def thaws(self, launcher: Launcher) -> None:
        """A launcher runs again."""
        self._known[launcher].thawed = self._world.loop.time() + TOUCH

    def harmed(self, launcher: Launcher, what: str, word: str = Word.LOST, until: float = 0.0) -> None:
        """Something happens to a node; a lost one was heard last up to a heartbeat earlier, and at most `until` seconds later."""
        now = self._world.loop.time()
        self._world.log(launcher.process.name, f"HARM: {what}")
        earliest, ranks = now, [launcher.rank]
        if word == Word.LOST:
            earliest -= BEAT + 1
            everybody = range(launcher.order.nodes + launcher.order.spares)
            attempt = self._known[launcher].attempt
            leads = launcher.rank == 0 or launcher.leads or (attempt and attempt.places.get(0) is launcher)
            ranks = list(everybody) if leads else ranks
        self._harms += [Harm(launcher.order.name, rank, word, earliest, now + until) for rank in ranks]

    def _harms_in(self, attempt: Attempt) -> list[Harm]:
        """What befell the nodes of an attempt while it ran, or just before."""
        return [harm for harm in self._harms if harm.order == attempt.order and harm.latest > attempt.begun - 1]

    def learns(self, launcher: Launcher, news: Outcome | None) -> None:
        """What a launcher knows of the first node that failed never changes within an attempt."""
        known = self._known[launcher]
        if known.news and news and news != known.news:
            self.fail(f"{launcher.process.name} knew that {known.news} was first, and now says {news}")
        known.news = news or known.news

    def reports(self, launcher: Launcher, outcome: Outcome) -> None:
        """A launcher reports how its workers ended; if it is lost after that, the report counts."""
        known = self._known[launcher]
        assert known.attempt
        lost = any((harm.rank, harm.word) == (launcher.rank, Word.LOST) for harm in self._harms_in(known.attempt))
        if not lost:
            known.attempt.reports[launcher.rank] = (self._world.loop.time(), outcome)

    def rules(self, launcher: Launcher, ending: Ending, outcomes: Mapping[int, Outcome]) -> None:
        """Node 0, or the node in its place, judges an attempt: the node that was harmed first is to blame."""
        attempt = self._known[launcher].attempt
        assert attempt
        first = ending.verdict.first
        told = f"{first.word} on node {first.node_rank}: {first.evidence}"
        self._world.log(
            launcher.process.name,
            f"verdict on attempt {attempt.number}: {told}; again: {ending.pause}, leaving {ending.leaving}",
        )
        if attempt.ruling:
            self.fail(f"attempt {attempt.number} is judged twice")
        attempt.ruling = ending
        for rank, (at, reported) in attempt.reports.items():
            arrived = not any(
                harm.rank == rank and harm.latest < at + 1 for harm in self._harms_in(attempt) if harm.word == Word.LOST
            )
            late = self._world.loop.time() > at + SLACK
            if arrived and late and rank != launcher.rank and outcomes[rank].word != reported.word:
                self.fail(f"node {rank} reported {reported.word}, and is judged as {outcomes[rank].word}")
        if not first.independent or first.stacks or first.word not in (Word.FAILED, Word.LOST):
            return
        harms = self._harms_in(attempt)
        if first.node_rank not in attempt.told:
            # Node 0 may start with what a node sent before it was frozen, and received late because its own network was away.
            harms = [
                harm
                for harm in self._harms
                if harm in harms or (harm.order, harm.rank) == (attempt.order, first.node_rank)
            ]
        own = [harm for harm in harms if (harm.rank, harm.word) == (first.node_rank, first.word)]
        if not own:
            self.fail(f"node {first.node_rank} is to blame ({told}), and nothing of that kind happened to it: {harms}")
        earliest = min(harm.earliest for harm in own)
        for rank, outcome in outcomes.items():
            latest = [harm.latest for harm in harms if (harm.rank, harm.word) == (rank, outcome.word)]
            if latest and max(latest) + SLACK < earliest:
                self.fail(f"node {first.node_rank} is to blame ({told}), but node {rank} was harmed first: {harms}")

    def hears(self, launcher: Launcher, ending: Ending, alone: bool) -> None:
        """A launcher knows what all make of an attempt: what node 0 said, unless the two were cut off from each other."""
        attempt = self._known[launcher].attempt
        assert attempt
        first = ending.verdict.first
        how = "alone: " if alone else ""
        self._world.log(
            launcher.process.name,
            f"{how}attempt {attempt.number} ended: {first.word} on node {first.node_rank}, again: {ending.pause}",
        )
        if not alone and ending != attempt.ruling:
            self.fail(
                f"{launcher.process.name} heard {ending} of attempt {attempt.number}, and node 0 said {attempt.ruling}"
            )
        if alone and ending.pause and self.place(launcher) == SPARE:
            self.fail(f"{launcher.process.name} ran no workers, and pauses for {ending.pause} s")
        if alone and not self._harms_in(attempt):
            self.fail(f"{launcher.process.name} judged attempt {attempt.number} alone, and nothing kept it from node 0")

    def hangs(self, launcher: Launcher, hang: Hang, team: Team) -> None:
        """Node 0 names who keeps the others waiting."""
        self._world.log(launcher.process.name, f"judges: {hang.text[:80]}")
        attempt = self._known[launcher].attempt
        assert attempt
        guilty = {place for place, one in attempt.places.items() if one.hang}
        if set(hang.ranks) - {2 * place + local for place in guilty for local in (0, 1)}:
            self.fail(f"ranks {hang.ranks} are said to hang, and it is the node in place {guilty}")

    def ended(self, launcher: Launcher) -> None:
        """A launcher ended."""
        self._world.log(launcher.process.name, f"exit code {launcher.code}")

    def newest(self, launcher: Launcher) -> int:
        """The number of the newest attempt that a launcher knows of, 0 before the first."""
        attempt = self._known[launcher].attempt
        return attempt.number if attempt else 0

    def place(self, launcher: Launcher) -> int:
        """The place of a launcher in the newest attempt that it knows of, SPARE without one."""
        attempt = self._known[launcher].attempt
        places = attempt.places.items() if attempt else ()
        return next((place for place, one in places if one is launcher), SPARE)

    def together(self, launchers: Collection[Launcher]) -> bool:
        """Whether all of these launchers know of the same attempt, and those that run it are among them."""
        attempt = next((self._known[one].attempt for one in launchers), None)
        if attempt is None or any(self._known[one].attempt is not attempt for one in launchers):
            return False
        return len(attempt.places) == attempt.nodes and all(one in launchers for one in attempt.places.values())

    def finish(self, order: Order, current: Mapping[int, Launcher], word: str, attempts: int) -> None:
        """All launchers ended: the job came to one end, and each that heard of it has the exit code that belongs to it.

        The job was to end with `word`, after so many attempts (0: any number).
        """
        ends = [
            one for one in self.attempts.values() if one.order == order.name and one.ruling and one.ruling.pause is None
        ]
        if not ends:
            self.fail(f"{order.name} came to no end: codes { ({rank: one.code for rank, one in current.items()}) }")
        final = ends[-1]
        assert final.ruling
        if len(ends) > 1 and not self._harms_in(ends[0]):
            self.fail(f"{order.name} came to {len(ends)} ends")
        verdict, there = final.ruling.verdict, list(final.places.values())
        if verdict.word not in (word, *([Word.FINISHED] if word == Word.STOPPED else [])):  # a stop may come too late
            self.fail(f"{order.name} ended as {verdict.word}, and {word} was due")
        if attempts not in (0, final.number):
            self.fail(f"{order.name} made {final.number} attempts, and {attempts} were due")
        for rank, launcher in current.items():
            heard = launcher in there or self._known[launcher].attempt is final  # as a spare node
            flexible = order.least < order.nodes or order.spares
            late = not heard and (flexible or any(one.rank == rank for one in there))
            cut_off = heard and any(harm.rank == rank and harm.word == Word.LOST for harm in self._harms_in(final))
            allowed = {verdict.code(rank)} | ({76} if late or cut_off else set())
            rivals = [
                one for one in self._world.launchers if one.order is order and one.rank == rank and one is not launcher
            ]
            if not order.auto and any(one in there or self._known[one].attempt is final for one in rivals):
                allowed.add(78)  # the launcher that it was to replace lived on, and kept the place
            if order.auto and not heard:
                allowed.add(76)  # all places were taken until the job ended
            if launcher.code not in allowed:
                self.fail(f"{launcher.process.name} ended with {launcher.code}, allowed are {allowed}")

    def never_started(self, order: Order, current: Mapping[int, Launcher]) -> None:
        """All launchers ended: nothing was started, since not all nodes reach each other, and each was told so."""
        if any(attempt.order == order.name for attempt in self.attempts.values()):
            self.fail(f"{order.name} started, and not all of its nodes reach each other")
        if codes := {rank: one.code for rank, one in current.items() if one.code != CONFIGURATION}:
            self.fail(f"not all nodes of {order.name} reach each other, and these ended with another code: {codes}")
