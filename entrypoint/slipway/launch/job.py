"""One job from plan to exit code: attempts until one ends it, agreed on with the other nodes where there are any."""

import dataclasses
import math
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from slipway.launch.attempt.attempt import attempt, not_started
from slipway.launch.attempt.lasting import Lasting, SnapshotMemory, Spare
from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.supervise import Elsewhere
from slipway.launch.attempt.terminal import say
from slipway.launch.closing import conclude
from slipway.launch.hangs.hang import Compare, HangReport
from slipway.launch.monitoring import Metrics, Notices, open_metrics, open_notices
from slipway.launch.node import Node, SingleNode, enter, enter_alone
from slipway.launch.resolve.devices import read_devices, wait_for_memory
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.placement import place_gpus
from slipway.launch.run_directory.bookkeeping import Books, Milestones
from slipway.launch.run_directory.run import AlreadyFinishedError, Run, refuse_links
from slipway.launch.run_directory.run_lock import RunLock, lock_file
from slipway.launch.verdict.block import block, locate
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.ledger import Kind
from slipway.launch.verdict.restarts import PAUSES, STUCK, Course, Ending, Try, count_failures, decide
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.process.machine import CLOCK, Clock
from slipway.process.tree import OwnProcesses
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import STOP_FILE, WAITING_FILE, write_json
from slipway.protocol.outcomes import Word

if TYPE_CHECKING:
    from slipway.launch.several_nodes import SeveralNodes


def run_job(job: Job) -> int:
    """Run this node's part of the job to its end, and return the exit code. Raises LaunchError where it cannot start."""
    say(job.plan.topology.arithmetic)
    for note in job.plan.topology.notes:
        say(note)
    with Stops() as stops, ExitStack() as stack:
        if job.single:
            try:
                node = enter_alone(job, stops, stack)
                return make_attempts(job, node, alone(job, node), stops, stack)
            except AlreadyFinishedError as finished:
                say(str(finished))
                return 0
        from slipway.launch.several_nodes import SeveralNodes  # the network code, which a single node can do without

        node = enter(job, stack)
        return make_attempts(job, node, stack.enter_context(SeveralNodes(job, stops)), stops, stack)


def alone(job: Job, node: Node) -> SingleNode:
    """What a launcher that waits for nobody knows of others."""
    if not job.plan.topology.process:
        return SingleNode()
    from slipway.launch.several_processes import SeveralProcesses  # the rendezvous's messages, which others do without

    return SeveralProcesses(job.plan.topology, node.run.path)


def make_attempts(
    job: Job,
    node: Node,
    nodes: "SingleNode | SeveralNodes",
    stops: Stops,
    stack: ExitStack,
    *,
    clock: Clock = CLOCK,
    attempt: Callable[..., Try] = attempt,
    run_lock: Callable[..., RunLock] = RunLock,
) -> int:
    """Attempts until one ends the job, or this node's part in it; the exit code. Raises LaunchError where none can begin."""
    lock: RunLock | None = None
    books = Books(node.ledger, job.plan, clock)
    memory = stack.enter_context(closing(SnapshotMemory(job)))
    own = OwnProcesses()
    spare = stack.enter_context(Spare(own, wanted=job.warm))
    metrics, notices = stack.enter_context(open_metrics(job, say)), stack.enter_context(open_notices(job, say))
    while True:
        node = dataclasses.replace(node, ledger=books.ledger)
        try:
            agreed = nodes.join(job, node, partial(was_stopped, stops))
        except LaunchError as error:
            if not node.tries:
                raise
            return end_between(job, node, not_started(job, node.run, error, clock.time()), books, notices)
        if agreed is None:
            return end_between(job, node, stopped_here(job, node, stops, clock.time()), books, notices)
        ours, node = agreed
        books.meet(node.run, node.ledger, again=bool(node.tries or node.missed))
        hears = partial(tell_hang, node.run, metrics, notices)
        hangs = hang_report(ours, node.run, hears, nodes.compare)
        try:
            lock = lock or take_lock(ours, node, stops, stack, run_lock)
            elsewhere = partial(look_elsewhere, lock, nodes)
            looks = partial(look_on, node.run, books, notices)
            lasting = Lasting(memory, spare, own, looks, hears, job.seconds("SLIPWAY_HEARTBEAT_TIMEOUT"))
            previous = node.tries[-1].outcome if node.tries else None
            lasting = dataclasses.replace(lasting, previous=previous, reached=node.reached)
            metrics.attempt(node.run)
            tried = attempt(ours, node.run, stops, elsewhere, hangs, lasting)
        except LaunchError as error:
            if job.single and not node.tries:
                raise
            tried = not_started(job, node.run, error, clock.time())
        taken_over = job.single and lock is not None and bool(lock.lost)  # then somebody else goes on with the run
        rule = (lambda verdict, _: Ending(verdict)) if taken_over else partial(decide_next, job, node, tried, stops)
        ending = nodes.report(tried.outcome, rule, lambda: was_stopped(stops) and stops.impatient, hangs)
        books.end_attempt(ending.verdict.first)
        tried = dataclasses.replace(tried, outcome=ending.verdict.first)  # the same on all nodes
        reached = max(node.reached, tried.reached)
        node = dataclasses.replace(node, tries=(*node.tries, tried), failures=ending.failures, reached=reached)
        leaves = job.plan.topology.node_rank in ending.leaving
        if ending.pause is None or leaves or (lock and lock.lost):
            stay = "wait for its replacement" if job.replaced else "go on without it"
            why = Cause(CauseKind.LEAVES, stay) if leaves else ending.why
            notices.end(node.run, ending.verdict)
            return end(job, dataclasses.replace(node, ledger=books.ledger), ending.verdict, why)
        announce(job, node, ending, ending.pause, clock.time(), memory.step)
        metrics.restart()
        notices.restart(node.run, ending.verdict)
        if not stops.wait(ending.pause):
            topology = job.plan.topology
            used = place_gpus(topology.gpus, topology.processes_per_node)
            wait_for_memory(used, partial(read_devices, job.environ), stops, say)
        books.book(Kind.PAUSING)


def look_on(run: Run, books: Books, notices: Notices, milestones: Milestones) -> None:
    """An attempt goes on: book its time, and tell those who watch from elsewhere."""
    books.look(milestones)
    notices.look(run)


def tell_hang(run: Run, metrics: Metrics, notices: Notices, hang: str) -> None:
    """Tell those who watch from elsewhere of a hang."""
    metrics.hang()
    notices.hang(run, hang)


def hang_report(job: Job, run: Run, hears: Callable[[str], None], compare: Compare) -> HangReport:
    """What reports a hang in the next attempt."""
    end, topology = job.sources.value("SLIPWAY_ON_HANG") == "end", job.plan.topology
    node_dir, limit = run.node(topology.node_rank).path, job.patience or math.inf
    return HangReport(node_dir, limit, say, end=end, hears=hears, compare=compare, process=topology.process_rank)


def was_stopped(stops: Stops) -> bool:
    """Whether this launcher, or the job, was asked to stop."""
    stops.look()
    return bool(stops.came)


def take_lock(
    job: Job, node: Node, stops: Stops, stack: ExitStack, run_lock: Callable[..., RunLock] = RunLock
) -> RunLock:
    """Lock the run directory to the job's end, and look for requests in it. Raises LaunchError where somebody else does."""
    refuse_links(node.run.path, job.plan.topology.node_rank)
    stops.watch(node.run.path)
    nonce = "" if job.single else job.plan.topology.rendezvous_id.rpartition("-")[0]
    lock = stack.enter_context(run_lock(lock_file(node.run, job.plan), say, stops, job=nonce))
    if not node.tries and not node.missed and job.plan.topology.rank == 0:
        (node.run.path / STOP_FILE).unlink(missing_ok=True)
    return lock


def look_elsewhere(lock: RunLock, nodes: "SingleNode | SeveralNodes") -> Elsewhere | None:
    """What ended this attempt outside of this node's workers: another launcher, which took this one for dead, or the first
    node that failed or is lost, if any."""
    if lock.lost:
        return Elsewhere(lock.lost)
    if news := nodes.news:
        text = f"node {news.node_rank} ({news.host}): {news.evidence or news.word}"
        return Elsewhere(text, gone=news.word == Word.LOST, known=news.word != Word.PEER)
    return None


def decide_next(job: Job, node: Node, tried: Try, stops: Stops, verdict: Verdict, leaving: tuple[int, ...]) -> Ending:
    """What follows a verdict; `leaving` are the nodes that leave a job which goes on, if there are any."""
    tried = dataclasses.replace(tried, outcome=verdict.first)
    tries, failures = (*node.tries, tried), count_failures(tried, node.failures)
    if leaving and job.restarts and verdict.word in (Word.STOPPED, Word.UNHEALTHY):
        return Ending(verdict, PAUSES[0], leaving=leaving, failures=failures)
    if (stops.came and not leaving) or verdict.first.good:
        return Ending(verdict)
    topology = job.plan.topology
    if topology.process:
        return Ending(verdict, why=Cause(CauseKind.PER_PROCESS))
    if verdict.first.word == Word.LOST and topology.requeues and not topology.elastic:
        return Ending(verdict, why=Cause(CauseKind.ONLY_REQUEUED, name=topology.requeues))
    decision = decide(tries, failures, job.restarts)
    if decision.why and decision.why.kind == CauseKind.STUCK:
        first = give_up(tries).outcome
        verdict = judge((first,)) if job.single else dataclasses.replace(verdict, word=first.word, first=first)
    return Ending(verdict, decision.pause, decision.why, failures=failures)


def give_up(tries: tuple[Try, ...]) -> Try:
    """The last attempt, when it is one too many without progress."""
    last = tries[-1]
    step = "no snapshot at all" if last.after is None else f"no snapshot after step {last.after}"
    cause = Cause(CauseKind.GAVE_UP, last.outcome.evidence or last.outcome.word, STUCK, step, last.outcome.cause.signs)
    return dataclasses.replace(last, outcome=dataclasses.replace(last.outcome, word=Word.NO_PROGRESS, cause=cause))


def announce(job: Job, node: Node, ending: Ending, pause: float, now: float, in_memory: int = -1) -> None:
    """Say how an attempt ended, and that another follows; `in_memory`: the step of a snapshot there, -1 without one."""
    number = node.run.attempt + 1
    later = f" in {pause:.0f} s" if pause else ""
    for line in block(ending.verdict)[:2]:
        say(line)
    if job.single:
        step = node.run.newest_step
        start = f" from the snapshot of step {step}" if step is not None else ""
        start = f" from the snapshot in memory of step {in_memory}" if in_memory > (step or -1) else start
        say(f"starting again{later}{start}: attempt {number}")
        return
    ranks, how = ", ".join(map(str, ending.leaving)), "with another" if job.replaced else "without"
    then = f" {how} node {ranks}" if ranks else ""
    say(f"waiting for nodes again{later}, for attempt {number}{then}")
    with suppress(OSError):
        write_json(node.run.node(job.plan.topology.node_rank).path / WAITING_FILE, {"attempt": number, "since": now})


def end(job: Job, node: Node, verdict: Verdict, why: Cause | None) -> int:
    """The end of a job after an attempt, the same on all nodes; the exit code."""
    lost = verdict.first.word == Word.LOST and verdict.first.node_rank == 0
    topology = job.plan.topology
    others = bool(topology.node_rank) and node.run.shared and not job.single and not lost
    if topology.process:
        others = topology.rank > 0  # the launcher of process 0 writes for all
    return conclude(verdict, job, node.run, Course(node.tries, why, node.missed, node.ledger), writes=not others)


def end_between(job: Job, node: Node, tried: Try, books: Books, notices: Notices) -> int:
    """The end of this node's part in a job while no attempt runs; the exit code."""
    books.book(Kind.REJOINING if node.tries else Kind.WAITING)
    notices.end(node.run, judge([tried.outcome]))
    run, tries = (node.run, (*node.tries, tried)) if node.tries else (None, ())
    return conclude(judge([tried.outcome]), job, run, Course(tries, missed=node.missed, ledger=books.ledger))


def stopped_here(job: Job, node: Node, stops: Stops, now: float) -> Try:
    """What a stop makes of a job of which nothing runs: the newest snapshot is intact."""
    node_rank, host = job.plan.topology.node_rank, socket.gethostname()
    if not node.tries:
        return Try(node.run.attempt, Outcome(node_rank, host, stops.word, now))
    last, name = node.tries[-1], stops.came[0].name
    cause = Cause(CauseKind.BETWEEN, locate(last.outcome), last.number, name)
    outcome = Outcome(node_rank, host, stops.word, now, cause=cause)
    return Try(last.number, outcome, last.after, last.after, last.moved)
