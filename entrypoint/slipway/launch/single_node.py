"""The launcher of a single node: it agrees with itself at once."""

import dataclasses
from collections.abc import Callable, Sequence

from slipway.launch.attempt.hang_report import HangReport
from slipway.launch.node import Node
from slipway.launch.resolve.connectivity import free_port
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.plan import make_plan
from slipway.launch.resolve.topology import FREE_PORT
from slipway.launch.verdict.attempts import Ending
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.launch.watch.standing import Standing
from slipway.protocol.files import newest_step


class SingleNode:
    """What SeveralNodes is for a launcher that has no others."""

    news: Outcome | None = None

    def join(self, job: Job, node: Node, stopped: Callable[[], bool]) -> tuple[Job, Node] | None:
        """The job and the node as the next attempt begins; None where a stop came between two of them.

        Without a snapshot of its own, a run that began from another one does so again.
        """
        if not node.tries:
            return job, node
        if stopped():
            return None
        run = node.run
        resume = run.resume if newest_step(run.path) is None and run.resume != "none" else "auto"
        run = dataclasses.replace(run, attempt=run.attempt + 1, resume=resume)
        return with_free_port(job), dataclasses.replace(node, run=run)

    def compare(self, standings: Sequence[Standing] | None) -> Sequence[Standing] | None:
        """Where all ranks stand, once all stand still: those of this node are all."""
        return standings

    def report(
        self,
        outcome: Outcome,
        rule: Callable[[Verdict, tuple[int, ...]], Ending],
        stopped: Callable[[], bool],
        hangs: HangReport | None = None,
    ) -> Ending:
        """The verdict on an attempt, and what follows by the `rule`; nobody else is there who may hang."""
        return rule(judge((outcome,)), ())


def with_free_port(job: Job) -> Job:
    """The job with another port for torchrun's store where any will do: somebody may have taken the first meanwhile."""
    topology = job.plan.topology
    if topology.values["MASTER_PORT"].source != FREE_PORT:
        return job
    port = free_port(0)
    topology = dataclasses.replace(topology, master_port=port, store_port=port)
    plan = make_plan(topology, job.plan.workload, job.plan.arguments, job.sources)
    return dataclasses.replace(job, plan=plan)
