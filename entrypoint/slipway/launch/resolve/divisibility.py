"""What must divide the job's processes: a model's stages, and in an elastic job the batch at every size. Pure."""

import dataclasses
import math
from collections.abc import Sequence

from slipway.launch.resolve.topology import Topology
from slipway.protocol.errors import LaunchError


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
        note += ", some of which stand on two nodes"
    return dataclasses.replace(topology, notes=(note, *topology.notes))


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
