"""Topology and workload become the exact torchrun command and environment. Pure, and printable by `slipway plan`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from slipway.launch.resolve.catalog import Workload
from slipway.launch.resolve.devices import Gpu
from slipway.launch.resolve.placement import place_gpus
from slipway.launch.resolve.settings import BY_NAME, SETTINGS
from slipway.launch.resolve.sources import LIBRARIES, Sources
from slipway.launch.resolve.topology import SPARE, Topology, Value
from slipway.protocol.binding import LOCAL_CORES, LOCAL_DEVICES, write_cores
from slipway.protocol.memory import VARIABLE as MEMORY
from slipway.protocol.redact import STARS, redact, redact_words

# What C++ code writes to stdout while our workloads open a group is dropped (train/worker/place.py), gloo's chatter with NCCL's
# words; and what is in its buffer is lost where a process dies. So NCCL is given another place for what NCCL_DEBUG asks of it.
NCCL_OUTPUT = MappingProxyType({"NCCL_DEBUG_FILE": "/dev/stderr"})
# What --debug gives to torchrun and the workers, unless the user does. DETAIL instead of INFO ends DistributedDataParallel on
# gloo with SIGSEGV in torch 2.10, and compares collectives, which is slow.
DEBUG = MappingProxyType(
    {
        "TORCH_LOGS": "distributed",  # +distributed: a pipeline tells every exchange, 18 lines a step
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "NCCL_DEBUG": "INFO",
        **NCCL_OUTPUT,
    }
)

# Where the processes of a single node meet. A MASTER_ADDR that is left over from another job leads to another machine, or
# nowhere, and torchrun would look for it for minutes.
LOOPBACK = "127.0.0.1"


class Plan(NamedTuple):
    """What will be started. `env` holds what is added to or changed in the environment, `unset` what is removed."""

    topology: Topology
    workload: Workload
    arguments: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The complete environment of torchrun."""
        kept = {name: value for name, value in environ.items() if name not in self.unset}
        return {**kept, **self.env}


def make_plan(topology: Topology, workload: Workload, arguments: Sequence[str], sources: Sources) -> Plan:
    """Return the plan; run directories are not in it, they are made when it runs."""
    return Plan(
        topology,
        workload,
        tuple(arguments),
        torchrun_argv(topology, workload, arguments),
        _worker_environment(topology, workload, sources),
        tuple(sorted(name for name in sources.environ if name.startswith("PET_") or name in _OURS)),
    )


def interfaces(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep NCCL and gloo on one network interface, where the user named none.

    NCCL takes every interface whose name begins so, eth10 for eth1, unless an = says that this is all of it
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname); gloo takes names as they are.
    """
    exact = {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}
    return {variable: value for variable, value in exact.items() if not environ.get(variable)}


# These would reach the workers with another meaning than torchrun's own, which sets them for each worker, or were meant for
# those of another job. And the launchers' secrets are none of theirs.
_OURS = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *(LOCAL_DEVICES, LOCAL_CORES, MEMORY, "SLIPWAY_PREVIOUS_OUTCOME", "SLIPWAY_TOKEN", "SLIPWAY_NOTIFY"),
    )
)


def torchrun_argv(topology: Topology, workload: Workload, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return torchrun's command line: static rendezvous, no restarts of its own, signals left to the launcher."""
    if topology.process or workload.spawned:
        return (*workload.command, *arguments)
    return (
        "torchrun",
        f"--nnodes={topology.nodes}",
        # A spare node learns it later, one with RANK=auto at the start.
        f"--node-rank={'PLACE' if topology.group_rank == SPARE else topology.group_rank}",
        f"--nproc-per-node={topology.processes_per_node}",
        f"--master-addr={topology.master_addr if topology.nodes > 1 else LOOPBACK}",
        f"--master-port={topology.store_port}",
        *([f"--rdzv-id={topology.rendezvous_id}"] if topology.rendezvous_id else []),
        "--max-restarts=0",
        "--signals-to-handle=SIGQUIT",
        "--no-python",
        "--",  # torchrun abbreviates its options, and would take a script's --r for one
        *workload.command,
        *arguments,
    )


def _worker_environment(topology: Topology, workload: Workload, sources: Sources) -> dict[str, str]:
    filled = {
        name: value
        for name, value in sources.env_file.items()
        if name.startswith(LIBRARIES) and not sources.environ.get(name)
    }
    env = {**topology.mended, **filled, "SLIPWAY_BACKEND": topology.backend, "SLIPWAY_DEVICE": topology.device}
    if topology.threads is not None:
        env["OMP_NUM_THREADS"] = str(topology.threads)
    if topology.nodes == 1 and not topology.process and not sources.variable("GLOO_SOCKET_IFNAME"):
        env["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo looks up our own name, which nobody knows under --network none
    spoken = NCCL_OUTPUT if workload.builtin and topology.backend == "nccl" else {}
    spoken = DEBUG if sources.parsed("SLIPWAY_DEBUG") else spoken
    env |= {name: value for name, value in spoken.items() if not sources.variable(name)}
    if topology.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif not sources.variable("CUDA_DEVICE_ORDER"):
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML and nvidia-smi count; CUDA itself begins with the fastest
    env |= _bindings(place_gpus(topology.gpus, topology.processes_per_node))
    if topology.process:
        env |= {
            "RANK": str(topology.process.rank),
            "LOCAL_RANK": str(topology.process.local_rank),
            "WORLD_SIZE": str(topology.process.world_size),
            "LOCAL_WORLD_SIZE": str(topology.process.local_world_size),
            "GROUP_RANK": str(topology.node_rank),
            "MASTER_ADDR": topology.master_addr,
            "MASTER_PORT": str(topology.master_port),
        }
    if workload.spawned:  # RANK and LOCAL_RANK it gives to each worker itself
        meeting = {"MASTER_ADDR": topology.master_addr, "MASTER_PORT": str(topology.master_port)}
        env |= {"WORLD_SIZE": str(topology.world_size), **meeting}
    return env


def _bindings(places: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables of protocol/binding.py, for the GPU of each local rank."""
    env = {}
    if any(gpu.is_slice for gpu in places):  # CUDA shows a process one slice at most, and no whole GPU beside it
        env[LOCAL_DEVICES] = ",".join(gpu.uuid for gpu in places)
    if any(gpu.cores for gpu in places):
        env[LOCAL_CORES] = ":".join(write_cores(gpu.cores) for gpu in places)
    return env


def resolved_values(topology: Topology, sources: Sources) -> dict[str, Value]:
    """Every setting with its value, source and the values it overruled."""
    values = dict(topology.values)
    for setting in SETTINGS:
        if setting.name not in values:
            first, *others = sources.claims(setting)
            values[setting.name] = Value.of(first, others)
    return {name: values[name] for name in BY_NAME}


def plan_json(plan: Plan, values: Mapping[str, Value], options: Mapping[str, Any]) -> dict[str, Any]:
    """The documented form of `slipway plan --json`; `options` are the workload's own."""
    topology = plan.topology
    return {
        "topology": {
            "nodes": topology.nodes,
            "least_nodes": topology.least,
            "spare_nodes": topology.spares,
            "node_rank": None if topology.is_open else topology.node_rank,
            "processes_per_node": topology.processes_per_node,
            "master_addr": topology.master_addr,
            "master_port": topology.master_port,
            "backend": topology.backend,
            "level": topology.level,
            "scheduler": topology.scheduler,
            "image": topology.image,
        },
        "values": {
            name: {
                "value": redact(name, value.value),
                "source": value.source,
                "overruled": [
                    {"value": redact(name, claim.value), "source": claim.source} for claim in value.overruled
                ],
            }
            for name, value in values.items()
        },
        "options": dict(options),
        "torchrun": {
            "argv": redact_words(plan.argv),
            "env": {name: redact(name, value) for name, value in sorted(plan.env.items())},
        },
    }


def plan_lines(plan: Plan, values: Mapping[str, Value], options: Sequence[str], more: str = "") -> list[str]:
    """The plan for people: the arithmetic, a table of values, the workload's `options`, what `more` there is, and the command."""
    rows = [(name, redact(name, value.value) or "-", value.source, value.overruled) for name, value in values.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    image = [f"in the image {plan.topology.image}"] if plan.topology.image else []
    lines = [plan.topology.arithmetic, *image, *plan.topology.notes, ""]
    for name, text, source, overruled in rows:
        lines.append(f"{name:<{widths[0]}}  {text:<{widths[1]}}  {source}")
        lines += [f"{'':<{widths[0]}}  overrides {redact(name, c.value)} from {c.source}" for c in overruled]
    lines += ["", f"options of {plan.workload.name}:", *options] if options else []
    lines += ["", more] if more else []
    exports = [f"{name}={shlex.quote(redact(name, value))}" for name, value in sorted(plan.env.items())]
    unset = [f"unset {' '.join(plan.unset)}"] if plan.unset else []
    started = "the workload, as one process of the job" if plan.topology.process else "torchrun"
    if plan.workload.spawned:
        started = "one process, which spawns the workers"
    command = [f"env {' '.join(exports)} \\", f"  {shlex.join(redact_words(plan.argv))}"]
    if limits := "; ".join(_limits(plan, "\n".join(command))):
        started += f" ({limits})"
    return [*lines, "", f"{started}:", *unset, *command]


def _limits(plan: Plan, command: str) -> Iterator[str]:
    """Why a command that is shown cannot be typed as it stands."""
    if plan.workload.builtin:
        yield "what the launcher starts, with more variables for the run directory; type run in place of plan to start it"
    if plan.topology.group_rank == SPARE:
        yield f"PLACE is what this {'node learns at the start' if plan.topology.is_open else 'spare node learns later'}"
    if STARS in command:
        yield f"{STARS} is a secret"
