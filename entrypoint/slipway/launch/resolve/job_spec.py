"""What a launcher was asked to run, on which host; and what must divide the job's processes: a model's stages, and in an elastic
job the batch at every size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slipway.launch.resolve.devices import Devices
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.plan import Plan
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Topology
from slipway.protocol.errors import LaunchError

if TYPE_CHECKING:
    from slipway.options import Options


class Job(NamedTuple):
    """A plan with what it was made from. `data` hashes the workload's embedded data, if it has any; `options` are those of a
    workload of ours.
    """

    plan: Plan
    sources: Sources
    devices: Devices
    environ: Mapping[str, str]
    data: Callable[[], str] | None
    host: Host
    options: "Options | None" = None

    def seconds(self, name: str) -> float:
        """A setting that counts seconds."""
        return float(self.sources.value(name))

    @property
    def after_failure(self) -> float | None:
        """Seconds that the other ranks have once one failed; None for `auto`."""
        seconds = self.sources.parsed("SLIPWAY_AFTER_FAILURE_SECONDS")
        return None if seconds == "auto" else float(str(seconds))

    @property
    def single(self) -> bool:
        """Whether this launcher need not agree with others: that of a single node, or one of as many as there are processes."""
        return self.plan.topology.nodes == 1 or self.plan.topology.process is not None

    @property
    def restarts(self) -> int:
        """How often this job may be started again. A user's script may not know how to go on, so it has to be asked for."""
        limit = self.sources.parsed("SLIPWAY_MAX_RESTARTS")
        if limit == "auto":
            from slipway.launch.verdict.restarts import DEFAULT  # a plan does without what judges attempts

            return DEFAULT if self.plan.workload.builtin and self.plan.workload.resumes else 0
        return int(str(limit))

    @property
    def enough(self) -> float:
        """Seconds of an attempt that are progress by themselves: of training beyond all before, or that a script ran."""
        from slipway.launch.verdict.restarts import MINUTE

        return MINUTE if self.plan.workload.builtin else self.seconds("SLIPWAY_PROGRESS_SECONDS")

    @property
    def warm(self) -> bool:
        """Whether a process is kept from which the next attempt is forked."""
        return bool(self.sources.parsed("SLIPWAY_WARM")) and self.restarts > 0

    @property
    def patience(self) -> float:
        """Seconds that the job may stand still; 0 means no limit."""
        limit = self.sources.parsed("SLIPWAY_HANG_SECONDS")
        if limit == "auto":
            return 300.0 if self.plan.workload.builtin else 600.0
        return float(str(limit))

    @property
    def start_patience(self) -> float:
        """The same for a job of ours that is starting, which a short patience must not end on a busy machine."""
        limit = self.sources.parsed("SLIPWAY_START_SECONDS")
        if limit == "auto":
            return max(300.0, self.patience) if self.patience else 0.0
        return float(str(limit))

    @property
    def replaced(self) -> bool:
        """Whether a node that is asked to stop, or is unhealthy, leaves alone, since another comes in its place: an Indexed Job
        creates the pod again, with the same index and an empty disk, while the others keep theirs, and their snapshots.

        Not where the workload has to be stopped on every node, or may not be started again.
        """
        return self.plan.topology.replaces and self.awaits_replacement

    @property
    def awaits_replacement(self) -> bool:
        """Whether the others wait for another launcher in the place of a node whose machine goes away. Not where a scheduler can
        only start the whole job again.
        """
        topology, workload = self.plan.topology, self.plan.workload
        return not (topology.elastic or topology.requeues) and workload.builtin and self.restarts > 0


def divide_processes(topology: Topology, stages: int, possible: Sequence[int]) -> Topology:
    """Return the topology with a note on how its processes are divided into pipelines of `stages`.

    `possible` are the numbers of stages that the model allows. Raises LaunchError for any other, and where stages would
    have to share a GPU.
    """
    world = f"{topology.world_size} process{'es' if topology.world_size > 1 else ''}"
    if stages not in possible:
        allowed = " or ".join(f"--stages {number}" for number in possible)
        raise LaunchError(
            f"--stages {stages} does not divide {world} into pipelines. Type {allowed}, or start a multiple of {stages} "
            "processes (--nproc-per-node N on each node)."
        )
    if stages == 1:
        return topology
    if topology.device == "cuda" and topology.backend == "gloo":
        raise LaunchError(
            f"--stages {stages} needs a GPU for each process, and {world} would share {len(topology.gpus)} over gloo, which "
            f"does not carry what stages exchange. Type --stages 1, use fewer processes with --backend nccl, or train on "
            "the CPU with NPROC_PER_NODE=cpu."
        )
    pipelines = topology.world_size // stages
    note = f"{world} = {pipelines} pipeline{'s' if pipelines > 1 else ''} of {stages} stages"
    if topology.processes_per_node % stages and topology.nodes > 1:
        note += ", some of which are on two nodes"
    return topology._replace(notes=(note, *topology.notes))


def require_all_sizes(topology: Topology, stages: int, batch: int | None, accumulate: int) -> None:
    """Raise LaunchError where an elastic job could come to a number of nodes that does not divide its model or batch.

    `batch` is the global batch that was typed, None where it follows the number of processes.
    """
    if not topology.elastic:
        return
    sizes = range(topology.least, topology.nodes + 1)
    processes = [nodes * topology.processes_per_node for nodes in sizes]
    said = f"This job may run on {topology.least} to {topology.nodes} nodes"
    if odd := [count for count in processes if count % stages]:
        raise LaunchError(
            f"{said}, and --stages {stages} does not divide {odd[0]} processes. Give each node a multiple of {stages} "
            "processes (--nproc-per-node N), or the job a fixed number of nodes."
        )
    parts = [count // stages * accumulate for count in processes]
    if batch and (odd := [count for count in parts if batch % count]):
        raise LaunchError(
            f"{said}, and --batch-size {batch} counts all processes: it cannot be divided into {odd[0]} micro-batches. Type "
            f"a multiple of {math.lcm(*parts)}, or --batch-size-per-process N, which lets the batch follow the nodes."
        )
