"""What a launcher brings to a job of several nodes, and what it makes of what all have agreed on."""

import dataclasses
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from slipway import __version__
from slipway.launch.job import Job, say
from slipway.launch.muster.card import Card, Go
from slipway.launch.resolve.container_checks import require_writable, results_folder
from slipway.launch.resolve.plan import interfaces, make_plan
from slipway.launch.resolve.versions import installed
from slipway.launch.run_directory.run import NoNewRunError, Run, choose_run, place_run
from slipway.launch.verdict.attempts import Try, count_failures
from slipway.protocol.errors import LaunchError
from slipway.protocol.files import newest_step


@dataclass(frozen=True)
class Node:
    """What a launcher knows of its job between attempts: the run as far as it knows it, what was tried, how many attempts it
    `missed` and how many of those failed (`earlier`), and why nothing can (`problem`), or no new run may (`occupied`), begin here.
    """

    run: Run
    tries: tuple[Try, ...] = ()
    missed: int = 0
    earlier: int = 0
    problem: str = ""
    occupied: str = ""


def enter(job: Job) -> Node:
    """Where a launcher that has just been started stands; the others learn of its problems instead of waiting for it."""
    node = Node(place_run(job.plan, job.sources, time.time()))
    try:
        require_writable(job.host, results_folder(job.sources))
        if job.plan.topology.node_rank == 0:
            run = choose_run(job.plan, job.sources, time.time(), finished_is_fine=True)
            return dataclasses.replace(node, run=run)
    except NoNewRunError as error:
        return dataclasses.replace(node, occupied=str(error))
    except LaunchError as error:
        return dataclasses.replace(node, problem=str(error))
    return node


def make_card(job: Job, node: Node) -> Card:
    """What this launcher says of itself to the others; `job` is as it was before an attempt with fewer nodes."""
    topology, run = job.plan.topology, node.run
    return Card(
        node_rank=topology.node_rank,
        nodes=f"{topology.least}:{topology.nodes}" if topology.elastic else str(topology.nodes),
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
        snapshot=newest_step(run.path) if node.tries or run.resume == "auto" else None,
        attempt=run.attempt if node.tries else run.attempt - 1,
        tries=node.missed + len(node.tries),
        failures=node.earlier + count_failures(node.tries),
        image=topology.image,
        runtime=topology.runtime,
        problem=node.problem,
        occupied=node.occupied,
    )


def runs_folder(job: Job) -> Path:
    """The folder that holds the run, whether it is named or one among the runs."""
    own, runs = (job.sources.value(name) for name in ("SLIPWAY_RUN_DIR", "SLIPWAY_RUNS"))
    return Path(own).absolute().parent if own else Path(runs).absolute()


def agree(job: Job, node: Node, go: Go) -> tuple[Job, Node]:
    """The job and this node's part in it as all nodes agreed on them."""
    own, path = job.sources.value("SLIPWAY_RUN_DIR"), node.run.path
    if own or path.name != go.run:
        path = Path(own).absolute() if own else runs_folder(job) / go.run
    topology = dataclasses.replace(
        job.plan.topology,
        nodes=go.nodes,
        least=go.nodes,
        group_rank=go.group_rank,
        processes_per_node=go.processes,
        master_addr=go.address,
        store_port=go.port,
    )
    if topology.nodes != job.plan.topology.nodes:
        say(topology.arithmetic)
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    if go.interface:
        plan = dataclasses.replace(plan, env={**plan.env, **interfaces(go.interface, job.environ)})
    resume = node.run.resume
    if (go.tries or topology.may_have_begun) and (go.snapshot is not None or resume == "none"):
        resume = "auto"  # but a job that began from another run, and has no snapshot of its own yet, does so again
    run = Run(path, resume, go.attempt, shared=go.shared and path.name == go.run)
    missed = max(0, go.tries - len(node.tries))
    earlier = max(0, go.failures - count_failures(node.tries))
    return dataclasses.replace(job, plan=plan), dataclasses.replace(node, run=run, missed=missed, earlier=earlier)
