"""A job of several nodes, seen from one of them: nothing starts before all launchers agree, and all share one verdict."""

import dataclasses
import signal
import socket
import time
from contextlib import ExitStack, suppress
from functools import partial

from slipway.launch.agreement import Node, agree, enter, make_card, runs_folder
from slipway.launch.alone import give_up, restart_limit, stopped_between, taken_over
from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.attempt.supervise import Elsewhere
from slipway.launch.job import Job, attempt, conclude, not_started, say
from slipway.launch.muster.messages import Ending
from slipway.launch.muster.muster import Muster
from slipway.launch.resolve.schedulers import SLURM
from slipway.launch.run_directory.run_lock import Hold, holder_file
from slipway.launch.verdict.attempts import PAUSES, Course, Try, decide
from slipway.launch.verdict.block import block
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import STOP_FILE, WAITING_FILE, write_json


def run_together(job: Job, stops: Stops) -> int:
    """Run this node's part of the job to its end, and return the exit code. Raises LaunchError where it cannot start."""
    node, sources = enter(job), job.sources
    topology = job.plan.topology
    with ExitStack() as stack:
        muster = stack.enter_context(
            Muster(
                node_rank=topology.node_rank,
                nodes=topology.nodes,
                least=topology.least,
                replaced=is_replaced(job),
                address=topology.master_addr,
                port=topology.master_port,
                timeout=job.seconds("SLIPWAY_MUSTER_TIMEOUT"),
                patience=job.seconds("SLIPWAY_GRACE_SECONDS") + 40,
                window=job.seconds("SLIPWAY_ELASTIC_WINDOW"),
                heartbeat=job.seconds("SLIPWAY_HEARTBEAT_TIMEOUT"),
                folder=runs_folder(job),
                say=say,
                token=sources.value("SLIPWAY_TOKEN"),
                allow_uneven=bool(sources.parsed("SLIPWAY_ALLOW_UNEVEN")),
            )
        )
        stops.listen(Exchange(muster, stops))
        return make_attempts(job, node, muster, stops, stack)


class Exchange:
    """Requests to stop, between this launcher and the others."""

    def __init__(self, muster: Muster, stops: Stops) -> None:
        self._muster, self._stops = muster, stops
        self._told = self._heard = 0

    def __call__(self) -> None:
        """Tell what came here, and take note of what came elsewhere."""
        for stopping in self._muster.stops[self._heard :]:
            number = signal.Signals[stopping.signal]
            self._stops.came.append(Stop(time.monotonic(), number, stopping.text, here=False))
            self._heard += 1
        while self._told < len(self._stops.came):  # a signal may add one at any moment
            stop = self._stops.came[self._told]
            self._told += 1
            if stop.here:
                self._muster.stop(stop.number.name, stop.name)


def make_attempts(job: Job, node: Node, muster: Muster, stops: Stops, stack: ExitStack) -> int:
    """Attempts of all nodes together until one ends the job, or this node's part in it; the exit code."""
    hold: Hold | None = None
    while True:
        try:
            go = muster.join(make_card(job, node), lambda: was_stopped(stops))
        except LaunchError as error:
            if not node.tries:
                raise
            return end_between(job, node, not_started(job, node.run, error).outcome)
        if go is None:
            return end_between(job, node, stopped_here(job, node, stops))
        ours, node = agree(job, node, go)
        for note in go.notes:
            say(note)
        try:
            hold = hold or take_hold(ours, node, stops, stack, new=not go.tries)
            tried = attempt(ours, node.run, stops, partial(look_elsewhere, hold, muster))
        except LaunchError as error:
            tried = not_started(job, node.run, error)
        rule = partial(decide_together, job, node, tried, stops)
        ending = muster.report(tried.outcome, rule, lambda: was_stopped(stops) and stops.impatient)
        tried = dataclasses.replace(tried, outcome=ending.verdict.first)  # the same on all nodes
        node = dataclasses.replace(node, tries=(*node.tries, tried))
        leaves = job.plan.topology.node_rank in ending.leaving
        if ending.pause is None or leaves or (hold and hold.lost):
            stay = "wait for its replacement" if is_replaced(job) else "go on without it"
            return end(job, node, ending.verdict, f"this node leaves, and the others {stay}" if leaves else ending.why)
        announce(job, node, ending)
        with suppress(OSError):
            since = {"attempt": node.run.attempt + 1, "since": time.time()}
            write_json(node.run.node(job.plan.topology.node_rank) / WAITING_FILE, since)
        stops.wait(ending.pause)


def is_replaced(job: Job) -> bool:
    """Whether a node that is told to go, or is unhealthy, leaves alone, since another comes in its place: an Indexed Job
    creates the pod again, with the same index and an empty disk, while the others keep theirs, and their snapshots.

    Not where the workload has to be told on every node, or may not be started again.
    """
    topology, workload = job.plan.topology, job.plan.workload
    return topology.replaces and not topology.elastic and workload.own and restart_limit(job) > 0


def was_stopped(stops: Stops) -> bool:
    """Whether this launcher, or the job, was asked to stop."""
    stops.look()
    return bool(stops.came)


def take_hold(job: Job, node: Node, stops: Stops, stack: ExitStack, *, new: bool) -> Hold:
    """Hold the run directory to the job's end, and look for requests in it. Raises LaunchError where somebody else does."""
    stops.watch(node.run.path)
    hold = stack.enter_context(Hold(holder_file(node.run, job.plan), say, stops))
    if new and job.plan.topology.node_rank == 0:
        (node.run.path / STOP_FILE).unlink(missing_ok=True)
    return hold


def look_elsewhere(hold: Hold, muster: Muster) -> Elsewhere | None:
    """What ended this attempt outside of this node's workers: the first node that failed or is lost, if any."""
    if (news := muster.news) and not hold.lost:
        text = f"node {news.node_rank} ({news.host}): {news.evidence or news.word}"
        return Elsewhere(text, gone=news.word == "lost")
    return taken_over(hold)


def decide_together(
    job: Job, node: Node, tried: Try, stops: Stops, verdict: Verdict, leaving: tuple[int, ...]
) -> Ending:
    """What follows a verdict; `leaving` are the nodes that leave a job which goes on, if there are any."""
    tries = (*node.tries, dataclasses.replace(tried, outcome=verdict.first))
    limit = restart_limit(job)
    if leaving and limit and verdict.word in ("stopped", "unhealthy"):
        return Ending(verdict, PAUSES[0], leaving=leaving)
    if (stops.came and not leaving) or verdict.first.good:
        return Ending(verdict)
    topology = job.plan.topology
    if verdict.first.word == "lost" and topology.scheduler == SLURM.name and not topology.elastic:
        return Ending(verdict, why="Slurm starts no task of a step again, only the whole job")
    decision = decide(tries, limit, node.earlier)
    if decision.stuck:
        first = give_up(tries).outcome
        verdict = dataclasses.replace(verdict, word=first.word, first=first)
    return Ending(verdict, decision.pause, decision.why)


def announce(job: Job, node: Node, ending: Ending) -> None:
    """Say how an attempt ended, and that another follows."""
    for line in block(ending.verdict)[:2]:
        say(line)
    ranks, how = ", ".join(map(str, ending.leaving)), "with another" if is_replaced(job) else "without"
    then = f" {how} node {ranks}" if ranks else ""
    say(f"waiting for nodes again in {ending.pause:.0f} s, for attempt {node.tries[-1].number + 1}{then}")


def end(job: Job, node: Node, verdict: Verdict, why: str) -> int:
    """The end of a job after an attempt, the same on all nodes; the exit code."""
    lost = verdict.first.word == "lost" and verdict.first.node_rank == 0
    others = node.run.shared and job.plan.topology.node_rank and not lost
    return conclude(verdict, job, None if others else node.run, Course(node.tries, why, node.missed))


def end_between(job: Job, node: Node, outcome: Outcome) -> int:
    """The end of this node's part in a job while no attempt runs; the exit code."""
    run = node.run if node.tries else None
    tries = (*node.tries, Try(node.run.attempt, outcome)) if node.tries else ()
    return conclude(judge([outcome]), job, run, Course(tries, missed=node.missed))


def stopped_here(job: Job, node: Node, stops: Stops) -> Outcome:
    """What a stop makes of a launcher that waits for others."""
    node_rank = job.plan.topology.node_rank
    if node.tries:
        return stopped_between(node.tries, stops, node_rank).outcome
    return Outcome(node_rank, socket.gethostname(), stops.word, time.time())
