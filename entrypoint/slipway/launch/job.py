"""One job from plan to exit code: attempts until one ends it, agreed on with the other nodes where there are any."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from slipway.launch.attempt.attempt import attempt, not_started
from slipway.launch.attempt.child import warm_up
from slipway.launch.attempt.gpu_use import wait_for_gpus
from slipway.launch.attempt.job_wide import JobWide
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Elsewhere
from slipway.launch.attempt.terminal import say
from slipway.launch.attempt.warm_standby import WarmStandby
from slipway.launch.closing import begin_anew, conclude, in_place, typed_outside
from slipway.launch.companions.companion import Companions
from slipway.launch.hangs.hang import HangReport
from slipway.launch.interruptions.watch import watch_notices
from slipway.launch.next_attempt import announce, decide_next, stopped_here
from slipway.launch.node import Node, SingleNode, enter, enter_alone
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.topology import SPARE
from slipway.launch.run_directory.bookkeeping import Books, Milestones
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.run import AlreadyFinishedError, Run, refuse_links
from slipway.launch.run_directory.run_lock import RunLock, lock_file
from slipway.launch.spares import SparesDisplay
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.ledger import Kind
from slipway.launch.verdict.restarts import AttemptHistory, Ending, Try
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import STOP_FILE
from slipway.protocol.outcomes import Word

if TYPE_CHECKING:
    import socket

    from slipway.launch.several_nodes import SeveralNodes


def run_job(job: Job) -> int:
    """Run this node's part of the job to its end, and return the exit code. Raises LaunchError where it cannot start."""
    say(job.plan.topology.arithmetic)
    for note in job.plan.topology.notes:
        say(note)
    if job.plan.topology.spares and not job.restarts:
        say("warning: this job does not restart, so no spare node will take a place: add --max-restarts N")
    with Stops() as stops:
        if not job.plan.topology.is_open:
            return run_node(job, stops, None)
        from slipway.launch.node_rank import claim_rank
        from slipway.launch.rendezvous.connection_errors import RankTakenError

        while True:
            placed, listening = claim_rank(job, stops)
            try:
                return run_node(placed, stops, listening)
            except RankTakenError as error:  # before it took part in anything; another launcher that did has come back
                say(f"{error} This launcher asks for another rank")
                stops.listen(lambda: None)


def run_node(job: Job, stops: Stops, listening: "socket.socket | None") -> int:
    """The same once the node rank is known; node 0 may be `listening` already. RankTakenError where another rank is needed."""
    with ExitStack() as stack:
        stack.enter_context(watch_notices(job, stops.announce, say))
        companions = stack.enter_context(Companions.of(job, stops, say))
        if job.single:
            try:
                node = enter_alone(job, stops, stack, companions=companions)
                return Attempts(job, node, alone(job, node), stops, stack, companions=companions).run()
            except AlreadyFinishedError as finished:
                say(f"{finished.path} is finished; there is nothing to resume. {begin_anew(job, finished.path)}")
                companions.finished(Run(finished.path, "auto", RunDirectory(finished.path).record.attempt))
                return 0
            except LaunchError as error:
                raise LaunchError(typed_outside(str(error), job), error.code) from None
        from slipway.launch.several_nodes import SeveralNodes  # the network code, which a single node does not need

        # A port that is open already must be served at once.
        nodes = stack.enter_context(SeveralNodes(job, stops, listening=listening)) if listening else None
        node = enter(job, stack, companions=companions)
        nodes = nodes or stack.enter_context(SeveralNodes(job, stops))
        return Attempts(job, node, nodes, stops, stack, companions=companions).run()


def alone(job: Job, node: Node) -> SingleNode:
    """What a launcher that waits for nobody knows of others."""
    if not job.plan.topology.process:
        return SingleNode()
    from slipway.launch.several_processes import SeveralProcesses  # the rendezvous's messages, which others do without

    return SeveralProcesses(job.plan.topology, node.run.path)


class JobParts(NamedTuple):
    """What the simulation of a job replaces: time, the work of an attempt, the lock of the run directory, a warm process."""

    clock: Clock = CLOCK
    attempt: Callable[..., Try] = attempt
    run_lock: Callable[..., RunLock] = RunLock
    warm_up: Callable[[Job, WarmStandby], None] = warm_up


REAL = JobParts()


class Attempts:
    """The attempts of a job on one node: the nodes join, each runs its part, they agree on how it ended, and then the job ends or
    pauses before the next attempt. `_node` is what is known between two of them.
    """

    def __init__(
        self,
        job: Job,
        node: Node,
        nodes: "SingleNode | SeveralNodes",
        stops: Stops,
        stack: ExitStack,
        parts: JobParts = REAL,
        companions: Companions | None = None,
    ) -> None:
        """`stack` closes at the job's end what all attempts share."""
        self._job, self._node, self._nodes = job, node, nodes
        self._stops, self._stack, self._parts = stops, stack, parts
        self._lock: RunLock | None = None
        self._companions = companions or Companions()
        self._books = Books(node.ledger, job.plan, parts.clock)
        self._job_wide = JobWide.open(job, stack)
        self._spares = SparesDisplay()

    def run(self) -> int:
        """Make attempts until one ends the job, or this node's part in it; the exit code. Raises LaunchError if none begins."""
        while True:
            try:
                job = self._join()
            except LaunchError as error:
                if not self._node.tries:
                    raise
                return self._end_between(not_started(self._job, self._node.run, error, self._parts.clock.time()))
            if job is None:
                return self._end_between(stopped_here(self._job, self._node, self._stops, self._parts.clock.time()))
            ending = self._watch(job) if job.plan.topology.is_spare else self._attempt(job)
            if ending is None:
                return self._end_between(stopped_here(self._job, self._node, self._stops, self._parts.clock.time()))
            if self._is_last(ending):
                return self._end(ending)
            self._pause(ending)

    def _join(self) -> Job | None:
        """Meet the other nodes for the next attempt; returns the job as agreed on, None if a stop came instead."""
        node = dataclasses.replace(self._node, ledger=self._books.ledger)
        agreed = self._nodes.join(self._job, node, self._stops.asked)
        if agreed is None:
            return None
        job, self._node = agreed
        self._follow_leader(job)
        self._books.meet(self._node.run, self._node.ledger, again=bool(self._node.tries or self._node.missed))
        return job

    def _follow_leader(self, job: Job) -> None:
        """Speak for all from here on where this node leads in place of another one, and no longer where another one leads now."""
        topology = self._job.plan.topology
        if topology.spares and (topology.rank == 0) != (job.plan.topology.rank == 0):
            topology = topology._replace(group_rank=self._node.place)
            self._job = self._job._replace(plan=self._job.plan._replace(topology=topology))
            self._companions.lead(leads=topology.rank == 0)

    def _attempt(self, job: Job) -> Ending:
        """Run this node's part of an attempt, and agree with the others on what follows."""
        hangs = self._make_hang_report(job)
        return self._agree(self._try(job, hangs), hangs)

    def _watch(self, job: Job) -> Ending | None:
        """As a spare node, wait for the end of the attempt that the others run, with a warm process for the next one; None where
        this node is asked to stop.
        """
        number, nodes, standby = self._node.run.attempt, self._nodes, self._job_wide.standby
        assert standby
        assert not isinstance(nodes, SingleNode)
        say(f"attempt {number} of {self._node.run.path.name} runs without this spare node, which waits")
        # Whether those who ran made progress is not known here; if they did, the job continues at once.
        tried = Try(number, Outcome(0, "", Word.LOST, self._parts.clock.time()), gained=math.inf)
        rule = partial(decide_next, self._job, self._node, tried, self._stops)
        warm = partial(self._parts.warm_up, job, standby)
        ending = nodes.watch(rule, self._stops.asked_here, warm)
        if ending:
            self._node = dataclasses.replace(self._node, missed=self._node.missed + 1, failures=ending.failures)
        return ending

    def _make_hang_report(self, job: Job) -> HangReport:
        """What reports a hang in this attempt."""
        end, topology = job.sources.value("SLIPWAY_ON_HANG") == "end", job.plan.topology
        node_dir, limit = self._node.run.node(topology.node_rank).path, job.patience or math.inf
        return HangReport(
            node_dir,
            limit,
            lambda line: say(in_place(line, job.host)),
            end=end,
            on_hang=self._note_hang,
            compare=self._nodes.compare,
            process=topology.process_rank,
            clock=self._parts.clock,
        )

    def _try(self, job: Job, hangs: HangReport) -> Try:
        """Run this node's part of an attempt. Raises LaunchError if the first one of a single node cannot begin."""
        node = self._node
        try:
            self._lock = self._lock or self._take_lock(job)
            job_wide = dataclasses.replace(
                self._job_wide,
                look_on=self._poll_state,
                on_hang=self._note_hang,
                silence=job.seconds("SLIPWAY_HEARTBEAT_TIMEOUT"),
                previous=node.tries[-1].outcome if node.tries else None,
                reached=node.reached,
            )
            self._companions.begin(node.run, job.plan.topology)
            return self._parts.attempt(job, node.run, self._stops, self._poll_elsewhere, hangs, job_wide)
        except LaunchError as error:
            if self._job.single and not node.tries:
                raise
            return not_started(self._job, node.run, error, self._parts.clock.time())

    def _take_lock(self, job: Job) -> RunLock:
        """Lock the run directory to the job's end, and watch it for requests. Raises LaunchError if another launcher holds it."""
        node, stops = self._node, self._stops
        refuse_links(node.run.path, job.plan.topology.node_rank)
        stops.watch(node.run.path)
        nonce = "" if job.single else job.plan.topology.rendezvous_id.rpartition("-")[0]
        lock = self._stack.enter_context(self._parts.run_lock(lock_file(node.run, job.plan), say, stops, job=nonce))
        if not node.tries and not node.missed and job.plan.topology.rank == 0:
            (node.run.path / STOP_FILE).unlink(missing_ok=True)
        return lock

    def _agree(self, tried: Try, hangs: HangReport) -> Ending:
        """Agree with the other nodes on how the attempt ended and what follows, and note it."""
        is_taken = self._job.single and bool(self._taken_over)  # then the launcher that took the run over continues
        rule = (
            (lambda verdict, _: Ending(verdict))
            if is_taken
            else partial(decide_next, self._job, self._node, tried, self._stops, has_enough=self._nodes.has_enough)
        )
        ending = self._nodes.report(tried.outcome, rule, lambda: self._stops.asked() and self._stops.impatient, hangs)
        self._books.end_attempt(ending.verdict.first)
        tried = dataclasses.replace(tried, outcome=ending.verdict.first)  # the same on all nodes
        tries, reached = (*self._node.tries, tried), max(self._node.reached, tried.reached)
        self._node = dataclasses.replace(self._node, tries=tries, failures=ending.failures, reached=reached)
        return ending

    @property
    def _taken_over(self) -> str:
        """Which launcher has taken over the run directory, or why a companion has this node leave; empty if neither is so."""
        return (self._lock.lost if self._lock else "") or self._companions.left

    def _leaves(self, ending: Ending) -> bool:
        """Whether this node leaves a job that continues without it."""
        return self._job.plan.topology.node_rank in ending.leaving

    def _is_last(self, ending: Ending) -> bool:
        """Whether this was the last attempt of this node."""
        return ending.pause is None or self._leaves(ending) or bool(self._taken_over)

    def _pause(self, ending: Ending) -> None:
        """Announce the next attempt, and wait until it can begin."""
        job, run, stops, pause = self._job, self._node.run, self._stops, ending.pause or 0.0
        announce(job, self._node, ending, pause, self._parts.clock.time(), self._job_wide.version)
        self._companions.restart(run, ending.verdict)
        if not stops.wait(pause):
            wait_for_gpus(job, stops, say)
        self._books.book(Kind.PAUSING)

    def _end(self, ending: Ending) -> int:
        """The end of a job after an attempt, the same on all nodes; the exit code."""
        job, node, verdict = self._job, self._node, ending.verdict
        stay = "continue without it" if job.plan.topology.elastic else "wait for its replacement"
        why = Cause(CauseKind.LEAVES, stay) if self._leaves(ending) else ending.why
        self._companions.end(node.run, verdict)
        lost = verdict.first.word == Word.LOST and verdict.first.node_rank == node.leader
        topology = job.plan.topology
        leads = topology.node_rank == node.leader and not (topology.spares and self._leaves(ending))
        others = not leads and node.run.shared and not job.single and not lost
        if topology.process:
            others = topology.rank > 0  # the launcher of process 0 writes for all
        if is_spare := topology.spares > 0 and node.place == SPARE:
            say("this node was a spare one until the end")
        elif shown := str(self._spares):
            say(shown)
        history = AttemptHistory(node.tries, why, node.missed, self._books.ledger)
        return conclude(verdict, job, node.run, history, writes=not (others or is_spare))

    def _end_between(self, tried: Try) -> int:
        """The end of this node's part in a job while no attempt runs; the exit code."""
        job, node = self._job, self._node
        self._books.book(Kind.REJOINING if node.tries else Kind.WAITING)
        self._companions.end(node.run, judge([tried.outcome]))
        run, tries = (node.run, (*node.tries, tried)) if node.tries else (None, ())
        return conclude(
            judge([tried.outcome]), job, run, AttemptHistory(tries, missed=node.missed, ledger=self._books.ledger)
        )

    def _poll_state(self, milestones: Milestones) -> None:
        """While an attempt runs: book its time, and report to those who watch from elsewhere."""
        self._books.poll(milestones)
        self._companions.poll(self._node.run)
        topology = self._job.plan.topology
        if topology.spares and topology.rank == 0:
            self._spares.show(self._nodes.spares, self._node.run.node(topology.node_rank).path)

    def _note_hang(self, hang: str) -> None:
        """Report a hang to those who watch from elsewhere."""
        self._companions.hang(self._node.run, hang)

    def _poll_elsewhere(self) -> Elsewhere | None:
        """What ended this attempt outside of this node's workers: another launcher, which took this one for dead, or the first
        node that failed or is lost, if any.
        """
        if taken := self._taken_over:
            return Elsewhere(taken)
        if news := self._nodes.news:
            text = f"node {news.node_rank} ({news.host}): {news.evidence or news.word}"
            return Elsewhere(text, gone=news.word == Word.LOST, known=news.word != Word.PEER)
        return None
