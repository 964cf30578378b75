"""Whether the network interfaces that NCCL and gloo were told to use exist on this node."""

from collections.abc import Collection

from slipway.launch.resolve.connectivity import interfaces_with_address
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.sources import Sources

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def absent_interfaces(job: Job) -> str:
    """What is wrong with the names that this job's libraries were given, and what to type; empty where nothing is."""
    # Workloads of ours agree on stops through gloo, also where they train over nccl.
    builtin, topology = job.plan.workload.builtin, job.plan.topology
    if topology.world_size == 1 and not builtin:
        return ""  # it may train without torch.distributed, on a machine that lacks what others have
    return missing_interfaces(job.sources, topology.backend, builtin, interfaces_with_address())


def missing_interfaces(sources: Sources, backend: str, builtin: bool, present: Collection[str]) -> str:
    """The same for these interfaces of this node: those that have an address, since neither library takes one without."""
    checks = {NCCL: (backend == "nccl", _not_for_nccl), GLOO: (backend == "gloo" or builtin, _not_for_gloo)}
    for name, (used, check) in checks.items():
        if used and (claim := sources.variable(name)) and (problem := check(claim.value, present)):
            here = ", ".join(sorted(present)) or "none"
            return f"{claim.about(name)}: {problem}. This node has {here}. Set {name} to one of them, or unset it."
    return ""


def _not_for_gloo(text: str, present: Collection[str]) -> str:
    """torch gives gloo names as they are, several with commas between them but none after the last, and gloo looks for each."""
    if text[:1] in ("^", "="):
        return f"{text[0]} is supported only by NCCL; gloo accepts only names of interfaces"
    absent = [name for name in text.removesuffix(",").split(",") if name not in present]
    return f"gloo finds no interface {', '.join(map(repr, absent))} with an address" if absent else ""


def _not_for_nccl(text: str, present: Collection[str]) -> str:
    """NCCL takes beginnings of names, whole names after =, and with ^ all others.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    others, names = text.startswith("^"), text.removeprefix("^")
    whole, wanted = (
        names.startswith("="),
        [part.partition(":")[0] for part in names.removeprefix("=").split(",") if part],
    )
    found = {name for name in present if any(name == one if whole else name.startswith(one) for one in wanted)}
    left = set(present) - found if others else found
    return "" if left else "NCCL finds no interface with an address by that"
