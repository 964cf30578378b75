"""A job of several nodes, seen from one of them: nothing starts before all launchers agree, and all share one verdict."""

import dataclasses
import importlib.metadata
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from slipway import __version__
from slipway.launch.attempts import Course, Try
from slipway.launch.errors import LaunchError
from slipway.launch.holder import Hold, holder_file
from slipway.launch.job import Job, attempt, conclude, not_started, say
from slipway.launch.muster.muster import Card, Go, Muster
from slipway.launch.plan import interfaces, make_plan
from slipway.launch.rundir import Run, choose_run, newest_step, place_run
from slipway.launch.stops import STOP_FILE, Stops
from slipway.launch.surroundings import require_writable, results_folder
from slipway.launch.verdict import Outcome, judge


def run_together(job: Job, stops: Stops) -> int:
    """The same for a node among several: nothing starts before all are here and agree, and all share one verdict."""
    topology = job.plan.topology
    run, problem = place_run(job.plan, job.sources, time.time()), ""
    try:
        require_writable(job.host, results_folder(job.sources))
        if topology.node_rank == 0:
            run = choose_run(job.plan, job.sources, time.time(), finished_is_fine=True)
    except LaunchError as error:
        problem = str(error)  # the others learn it, too, instead of waiting for a node that never comes
    runs = Path(job.sources.value("SLIPWAY_RUNS")).absolute()
    with Muster(
        node_rank=topology.node_rank,
        nodes=topology.nodes,
        address=topology.master_addr,
        port=topology.master_port,
        timeout=job.seconds("SLIPWAY_MUSTER_TIMEOUT"),
        patience=job.seconds("SLIPWAY_GRACE_SECONDS") + 40,
        folder=runs,
        say=say,
        token=job.sources.value("SLIPWAY_TOKEN"),
        allow_uneven=bool(job.sources.parsed("SLIPWAY_ALLOW_UNEVEN")),
    ) as muster:
        go = muster.join(make_card(job, run, problem), lambda: stops.first is not None)
        if go is None:
            outcome = Outcome(topology.node_rank, socket.gethostname(), stops.word, time.time())
            return conclude(judge([outcome]), job, None, Course())
        for note in go.notes:
            say(note)
        job, run = agree(job, run, go, runs)
        stops.watch(run.path)
        with ExitStack() as stack:
            try:
                hold = stack.enter_context(Hold(holder_file(run, job.plan), say, stops))
                if topology.node_rank == 0:
                    (run.path / STOP_FILE).unlink(missing_ok=True)
                ended = attempt(job, run, stops, lambda: hold.lost or lost_node(muster))
            except LaunchError as error:
                ended = not_started(job, run, error)
            verdict = muster.report(ended.outcome, lambda: stops.impatient)
            why = "" if verdict.first.good else "the nodes of a job are not started again together yet"
            course = Course((Try(run.attempt, verdict.first),), why)  # the same on all nodes
            return conclude(verdict, job, None if go.shared and topology.node_rank else run, course)


def make_card(job: Job, run: Run, problem: str) -> Card:
    """What this launcher says of itself to the others."""
    topology = job.plan.topology
    return Card(
        node_rank=topology.node_rank,
        nodes=str(topology.nodes),
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
        nccl=installed("nvidia-nccl-cu12"),
        job=topology.job,
        data=job.data() if job.data else None,
        snapshot=newest_step(run.path) if run.resume == "auto" else None,
        attempt=run.attempt - 1,
        image=topology.image,
        runtime=topology.runtime,
        problem=problem,
    )


def installed(package: str) -> str | None:
    """The version of an installed package, found without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def agree(job: Job, run: Run, go: Go, runs: Path) -> tuple[Job, Run]:
    """The job and the run directory as all nodes agreed on them."""
    own = job.sources.value("SLIPWAY_RUN_DIR")
    path = run.path if go.node_rank == 0 else Path(own).absolute() if own else runs / go.run
    topology = dataclasses.replace(
        job.plan.topology, processes_per_node=go.processes, master_addr=go.address, store_port=go.port
    )
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    if go.interface:
        plan = dataclasses.replace(plan, env={**plan.env, **interfaces(go.interface, job.environ)})
    shared = go.shared and path.name == go.run
    return dataclasses.replace(job, plan=plan), dataclasses.replace(run, path=path, attempt=go.attempt, shared=shared)


def lost_node(muster: Muster) -> str:
    """Which other node failed or is lost, empty while all are well."""
    news = muster.news
    return f"node {news.node_rank} ({news.host}): {news.evidence or news.word}" if news else ""
