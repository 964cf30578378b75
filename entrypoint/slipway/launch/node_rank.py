"""RANK=auto: a job with the node rank that its launcher finds out at the start (rendezvous/claim.py)."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from slipway.launch.attempt.stops import Stops
from slipway.launch.rendezvous.claim import Claimant, Claimed
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import HELD, Ask, NodeInfo
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.resolve.topology import OPEN
from slipway.launch.run_directory.run import place_run
from slipway.launch.several_nodes import configure
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.errors import CODE_OF, LaunchError


def claim_rank(
    job: Job,
    stops: Stops,
    *,
    clock: Clock = CLOCK,
    adapt: Callable[[RendezvousConfig], RendezvousConfig] = lambda config: config,
    run: Callable[[Coroutine[Any, Any, Claimed | None]], Claimed | None] = asyncio.run,
) -> tuple[Job, socket.socket | None]:
    """The job with the rank that this node has found out, and on node 0 the port that is open for it. `adapt` and `run` are the
    simulation's. Raises LaunchError as Claimant.claim, and for a stop (75, 79).
    """
    topology = job.plan.topology
    config = adapt(configure(job, stops, clock))
    who = topology.container or config.random.randbytes(16).hex()
    ask = Ask(who, config.job, held_ranks(job, clock))
    nobody = NodeInfo(OPEN, topology.size, socket.gethostname(), "", (), 0, "", "", "", runtime=topology.runtime)
    claimant = Claimant(config, ask, may_lead=job.sources.rdzv.may_lead)
    if (claimed := run(claimant.claim(nobody, stops.asked))) is None:
        raise LaunchError(
            f"{stops.came[0].name} came before this node had a rank; nothing was started.", CODE_OF[stops.word]
        )
    rank, listening = claimed
    leads = "" if rank else f": {config.address}:{config.port} leads to it"
    config.say(f"this is node {rank} of {config.launchers}{leads}")
    plan = make_plan(topology.at(rank, who), job.plan.workload, job.plan.arguments, job.sources)
    for note in plan.topology.notes:
        config.say(note)
    return job._replace(plan=plan), listening


def held_ranks(job: Job, clock: Clock) -> tuple[int, ...]:
    """The node ranks that launchers of this container, or of this machine, had in the run, as far as its directory is here."""
    with suppress(LaunchError):  # what is wrong with the run is said when it begins
        run = place_run(job.plan, job.sources, clock.time())
        return tuple(run.ranks_of(socket.gethostname(), job.plan.topology.container))[:HELD]
    return ()
