"""What follows an attempt: whether the job continues, and what is said of that."""

import dataclasses
import socket
from collections.abc import Callable
from contextlib import suppress

from slipway.launch.attempt.stops import Stops
from slipway.launch.attempt.terminal import say
from slipway.launch.node import Node
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.topology import SPARE
from slipway.launch.verdict.block import block, locate
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.restarts import PAUSES, STUCK, Ending, Try, count_failures, decide
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.files import WAITING_FILE, write_json
from slipway.protocol.outcomes import Word
from slipway.protocol.snapshots import newest_version


def decide_next(
    job: Job,
    node: Node,
    tried: Try,
    stops: Stops,
    verdict: Verdict,
    leaving: tuple[int, ...],
    *,
    has_enough: Callable[[], bool] = lambda: False,
) -> Ending:
    """What follows a verdict; `leaving` are the nodes that leave a job which goes on, if there are any. `has_enough`: whether
    another attempt can begin without who was lost.
    """
    tried = dataclasses.replace(tried, outcome=verdict.first)
    tries, failures = (*node.tries, tried), count_failures(tried, node.failures)
    if leaving and job.restarts and verdict.word in (Word.STOPPED, Word.UNHEALTHY):
        return Ending(verdict, PAUSES[0], leaving=leaving, failures=failures)
    if (stops.came and not leaving) or verdict.first.good:
        return Ending(verdict)
    topology = job.plan.topology
    if topology.process:
        return Ending(verdict, why=Cause(CauseKind.PER_PROCESS))
    if verdict.first.word == Word.LOST and topology.requeues and not (topology.elastic or has_enough()):
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


def announce(
    job: Job, node: Node, ending: Ending, pause: float, now: float, in_memory: tuple[int, int] = (-1, -1)
) -> None:
    """Say how an attempt ended, and that another follows; `in_memory`: attempt and step of a snapshot there, -1 without one."""
    number = node.run.attempt + 1
    later = f" in {pause:.0f} s" if pause else ""
    for line in block(ending.verdict)[:2]:
        say(line)
    if job.single:
        on_disk = newest_version(node.run.path)
        place, (_, step) = (" in memory", in_memory) if in_memory > on_disk else ("", on_disk)
        start = f" from the snapshot{place} of step {step}" if step >= 0 else ""
        say(f"starting again{later}{start}: attempt {number}")
        return
    ranks, how = ", ".join(map(str, ending.leaving)), "without" if job.plan.topology.elastic else "with another"
    then = f" {how} node {ranks}" if ranks else ""
    say(f"waiting for nodes again{later}, for attempt {number}{then}")
    with suppress(OSError):
        if node.place != SPARE:  # which has no folder in the run
            write_json(
                node.run.node(job.plan.topology.node_rank).path / WAITING_FILE, {"attempt": number, "since": now}
            )


def stopped_here(job: Job, node: Node, stops: Stops, now: float) -> Try:
    """What a stop makes of a job of which nothing runs: the newest snapshot is intact."""
    node_rank, host = job.plan.topology.node_rank, socket.gethostname()
    name = stops.came[0].name
    if not node.tries:
        early = Cause(CauseKind.BEFORE_START, name=name)
        return Try(node.run.attempt, Outcome(node_rank, host, stops.word, now, cause=early))
    last = node.tries[-1]
    cause = Cause(CauseKind.BETWEEN, locate(last.outcome), last.number, name)
    outcome = Outcome(node_rank, host, stops.word, now, cause=cause)
    return Try(last.number, outcome, last.after, last.after, last.moved)
