"""Models that span several processes: whether the job's processes can be divided among their stages. Pure."""

import dataclasses
from collections.abc import Sequence

from slipway.launch.errors import LaunchError
from slipway.launch.topology import Topology


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
            f"--stages {stages} needs a GPU for each process, and {world} would share {topology.gpus} over gloo, which "
            f"does not carry what stages exchange. Type --stages 1, use fewer processes with --backend nccl, or train on "
            "the CPU with NPROC_PER_NODE=cpu."
        )
    pipelines = topology.world_size // stages
    note = f"{world} = {pipelines} pipeline{'s' if pipelines > 1 else ''} of {stages} stages"
    if topology.processes_per_node % stages and topology.nodes > 1:
        note += ", some of which stand on two nodes"
    return dataclasses.replace(topology, notes=(note, *topology.notes))
