"""A launcher among those of several nodes: what it brings to the rendezvous, and what it makes of what all have agreed on."""

import dataclasses
import hashlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from slipway import __version__
from slipway.launch.attempt.stops import Stop, Stops
from slipway.launch.attempt.terminal import say
from slipway.launch.hangs.hang import HangReport
from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.node import Node
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import TEXT, AttemptStart, Finding, NodeInfo, Peer
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.packages import installed, installed_nccl, locate_module, read_cuda
from slipway.launch.resolve.plan import interfaces, make_plan
from slipway.launch.resolve.topology import SPARE, Topology
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.process.machine import CLOCK, Clock

POLL_SECONDS = 5.0  # between polls of the others once this node is through


class SeveralNodes:
    """This launcher's part in the agreement of all, as a context manager."""

    def __init__(
        self,
        job: Job,
        stops: Stops,
        findings: tuple[Finding, ...] = (),
        *,
        listening: socket.socket | None = None,
        clock: Clock = CLOCK,
        rendezvous: Callable[[RendezvousConfig], Rendezvous] = Rendezvous,
    ) -> None:
        """`findings` are what a check brings along for the others; `listening` is the port of node 0 if that is open already;
        `rendezvous` makes this launcher's part in the rendezvous.
        """
        self._stops, self._findings, self._clock = stops, findings, clock
        self._nonce = ""  # of this job, from its first attempt on
        self._rendezvous = rendezvous(dataclasses.replace(configure(job, stops, clock), listening=listening))

    def __enter__(self) -> Self:
        """Open the rendezvous, and exchange requests to stop from here on. Raises LaunchError as it does."""
        self._rendezvous.__enter__()
        self._stops.listen(Exchange(self._rendezvous, self._stops, self._clock))
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the others."""
        self._rendezvous.__exit__(*error)

    @property
    def news(self) -> Outcome | None:
        """The first node known to have failed or to be lost in this attempt."""
        return self._rendezvous.news

    @property
    def peers(self) -> Sequence[Peer]:
        """What the launchers of this attempt said of themselves, this one among them, where they brought findings."""
        return self._rendezvous.peers

    def join(self, job: Job, node: Node, stopped: Callable[[], bool]) -> tuple[Job, Node] | None:
        """The job and this node's part in it as all agreed on them; None where a stop came before. Raises LaunchError."""
        info = dataclasses.replace(make_info(job, node), nonce=self._nonce, findings=self._findings)
        start = self._rendezvous.join(info, stopped)
        if start is None:
            return None
        self._nonce = start.nonce
        agreed = agree(job, node, start)
        for note in start.notes:
            say(note)
        return agreed

    def compare(self, dumps: Sequence[StackDump] | None) -> Sequence[StackDump] | None:
        """Where all ranks stand, once those of all nodes stand still: on node 0, which judges; None elsewhere."""
        return self._rendezvous.compare(dumps)

    @property
    def spares(self) -> Sequence[tuple[int, str]]:
        """Where this launcher leads, the spare nodes that are here while an attempt runs, each by its rank and host."""
        return self._rendezvous.spares

    def has_enough(self) -> bool:
        """Where this launcher leads, whether enough are here for another attempt, spare ones among them."""
        return self._rendezvous.has_enough()

    def watch(
        self,
        rule: Callable[[Verdict, tuple[int, ...]], Ending],
        stopped: Callable[[], bool],
        glance: Callable[[], None],
    ) -> Ending | None:
        """As a spare node, wait for the others' verdict and what follows; None once `stopped`. `glance` is called meanwhile."""
        return self._rendezvous.watch(rule, stopped, glance)

    def report(
        self,
        outcome: Outcome,
        rule: Callable[[Verdict, tuple[int, ...]], Ending],
        stopped: Callable[[], bool],
        hangs: HangReport | None = None,
    ) -> Ending:
        """The one verdict on an attempt, and what follows by the `rule` of node 0, which looks for others that hang meanwhile."""
        polled = 0.0

        def glance() -> None:
            nonlocal polled
            now = self._clock.monotonic()
            if hangs is None or not outcome.good or now - polled < POLL_SECONDS:
                return
            polled = now
            hang = hangs.judge(self._rendezvous.dumps, now)
            if hang and hangs.end:
                self._rendezvous.correct(hangs.outcome(hang, outcome.node_rank, outcome.host))

        self._stops.poll()  # a request that came at the very end is known to all before the outcome is: it may tell who leaves
        ending = self._rendezvous.report(outcome, rule, stopped, glance)
        if hangs:
            hangs.forget()
        return ending


def configure(job: Job, stops: Stops, clock: Clock) -> RendezvousConfig:
    """The rendezvous of this job, as this launcher was started."""
    topology = job.plan.topology
    return RendezvousConfig(
        node_rank=topology.node_rank,
        nodes=topology.nodes,
        least=topology.least,
        replaced=job.replaced,
        awaits=job.awaits_replacement,
        address=topology.master_addr,
        port=topology.master_port,
        timeout=job.seconds("SLIPWAY_RENDEZVOUS_TIMEOUT"),
        patience=max(job.seconds("SLIPWAY_GRACE_SECONDS"), job.after_failure or 0) + 40,
        window=job.seconds("SLIPWAY_ELASTIC_WINDOW"),
        spares=topology.spares,
        heartbeat=job.seconds("SLIPWAY_HEARTBEAT_TIMEOUT"),
        folder=runs_folder(job),
        say=say,
        wake=stops.wake,
        token=job.sources.value("SLIPWAY_TOKEN"),
        doubtful=may_count_processes(topology),
        allow_uneven=bool(job.sources.parsed("SLIPWAY_ALLOW_UNEVEN")),
        job=topology.identity[:TEXT],
        who=topology.claimant,
        clock=clock,
    )


class Exchange:
    """Requests to stop, between this launcher and the others."""

    def __init__(self, rendezvous: Rendezvous, stops: Stops, clock: Clock) -> None:
        self._rendezvous, self._stops, self._clock = rendezvous, stops, clock
        self._told = self._heard = 0

    def __call__(self) -> None:
        """Tell what came here, and take note of what came elsewhere."""
        for stopping in self._rendezvous.stops[self._heard :]:
            number = signal.Signals[stopping.signal]
            self._stops.came.append(Stop(self._clock.monotonic(), number, stopping.text, here=False))
            self._heard += 1
        while self._told < len(self._stops.came):  # a signal may add one at any moment
            stop = self._stops.came[self._told]
            self._told += 1
            if stop.here:
                self._rendezvous.stop(stop.number.name, stop.name, notice=stop.notice)


def may_count_processes(topology: Topology) -> bool:
    """Whether somebody may have meant processes by the number of nodes: as WORLD_SIZE, and no scheduler has a say here."""
    return topology.scheduler == "none" and topology.values["WORLD_SIZE"].claim.is_called("WORLD_SIZE")


def make_info(job: Job, node: Node) -> NodeInfo:
    """What this launcher says of itself to the others; `job` is as it was before an attempt with fewer nodes."""
    topology, run = job.plan.topology, node.run
    return NodeInfo(
        node_rank=topology.node_rank,
        nodes=topology.size,
        host=socket.gethostname(),
        workload=job.plan.workload.name,
        arguments=job.plan.arguments,
        processes=topology.processes_per_node,
        backend=topology.backend,
        version=__version__,
        run=run.path.name,
        gpus=tuple(gpu.name for gpu in job.devices.gpus),
        driver=job.devices.driver or None,
        torch=installed("torch"),
        nccl=installed_nccl(read_cuda(locate_module("torch"))),
        job=topology.job,
        data=job.data() if job.data else None,
        script=read_checksum(Path(job.plan.workload.command[-1])),
        snapshot=run.newest_step if node.tries or run.resume == "auto" else None,
        attempt=run.attempt if node.tries or node.missed else run.attempt - 1,
        goes_on=run.resume == "auto",
        tries=node.missed + len(node.tries),
        failures=node.failures,
        reached=node.reached,
        ledger=node.ledger,
        image=topology.image,
        runtime=topology.runtime,
        problem=node.problem,
        occupied=node.occupied,
        run_dir=os.path.normpath(own) if (own := job.sources.value("SLIPWAY_RUN_DIR")) else "",
        place=node.place,
    )


def read_checksum(script: Path) -> str:
    """The first digits of the SHA-256 of a user's script; empty for a workload of ours, a module, or what cannot be read."""
    with suppress(OSError):
        if script.is_file():
            return hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    return ""


def runs_folder(job: Job) -> Path:
    """The folder that holds the run, whether it is named or one among the runs."""
    own, runs = (job.sources.value(name) for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_RUNS"))
    return Path(own).absolute().parent if own else Path(runs).absolute()


def agree(job: Job, node: Node, start: AttemptStart) -> tuple[Job, Node]:
    """The job and this node's part in it as all nodes agreed on them."""
    own, path = job.sources.value("SLIPWAY_RUN_DIR"), node.run.path
    if own or path.name != start.run:
        path = Path(own).absolute() if own else runs_folder(job) / start.run
    topology = job.plan.topology._replace(
        nodes=start.nodes,
        least=start.nodes,
        group_rank=start.group_rank,
        processes_per_node=start.processes,
        master_addr=start.address,
        store_port=start.port,
        rendezvous_id=f"{start.nonce}-{start.attempt}",
    )
    if topology.nodes != job.plan.topology.nodes:
        say(topology.arithmetic)
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    if start.interface:
        plan = plan._replace(env={**plan.env, **interfaces(start.interface, job.environ)})
    again = start.tries or topology.may_have_begun
    resume = node.run.resumes_again(start.snapshot) if again else node.run.resume
    run = Run(path, resume, start.attempt, shared=start.shared and path.name == start.run, origin=node.run.origin)
    missed = max(0, start.tries - len(node.tries))
    ledger = node.ledger if node.tries and node.place != SPARE else start.ledger
    node = dataclasses.replace(node, run=run, missed=missed, failures=start.failures, reached=start.reached)
    node = dataclasses.replace(node, place=start.group_rank, leader=start.leader)
    return job._replace(plan=plan), dataclasses.replace(node, ledger=ledger)
