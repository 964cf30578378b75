"""One small table per scheduler: which of its variables says what about the job.

`read_schedulers` is pure. A reading's values are keyed by our own names: WORLD_SIZE and RANK count nodes; JOB names the
job, RESTARTS counts how often it was requeued; PROCESS_RANK, PROCESSES, LOCAL_RANK and LOCAL_PROCESSES are there where the
launcher was started once per process.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from slipway.launch.resolve.nodelist import expand_nodelist
from slipway.launch.resolve.settings import Claim
from slipway.protocol.errors import LaunchError

Claims = dict[str, Claim]


class Reading(NamedTuple):
    """What one scheduler says. `strict`: RANK and WORLD_SIZE of the environment must not contradict it."""

    scheduler: str
    claims: Mapping[str, Claim]
    strict: bool = False
    broken: str = ""  # why the master's address cannot be read from what it says

    def get(self, name: str) -> Claim | None:
        """The claim about one of our names, or None."""
        return self.claims.get(name)


class Scheduler(NamedTuple):
    """`marks`: it is there when one of them is set. `table`: our name -> its variables, the first set one counts."""

    name: str
    marks: tuple[str, ...]
    table: Mapping[str, tuple[str, ...]]
    derive: Callable[[Mapping[str, str], str, Claims], None] | None = None
    strict: bool = False


def read_schedulers(environ: Mapping[str, str], fqdn: str) -> tuple[Reading, ...]:
    """Return the readings of all schedulers that left their marks in the environment, in the order of precedence.

    `fqdn` is this host's full name; Kubernetes says only there which Service the pods share.
    """
    readings = []
    for scheduler in SCHEDULERS:
        if any(environ.get(mark) for mark in scheduler.marks):
            claims = {
                ours: Claim(environ[theirs], f"{scheduler.name} ({theirs})")
                for ours, names in scheduler.table.items()
                if (theirs := next((name for name in names if environ.get(name)), None))
            }
            broken = ""
            try:
                if scheduler.derive:
                    scheduler.derive(environ, fqdn, claims)
            except LaunchError as error:
                broken = str(error)  # harmless where somebody else names the master
            readings.append(Reading(scheduler.name, claims, scheduler.strict, broken))
    return tuple(readings)


def _derive_slurm(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    job, number = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    step = f"{job}.{number}"
    if number != "0":  # a second srun of the same job is another run; a requeued job begins with step 0 again
        claims["JOB"] = Claim(step, "Slurm (SLURM_JOB_ID, SLURM_STEP_ID)")
    # Even, so that torchrun's store fits beside it, and below 32768, where Linux starts its ephemeral ports.
    claims["MASTER_PORT"] = Claim(str(20_000 + zlib.crc32(step.encode()) % 6_384 * 2), f"Slurm (hash of step {step})")
    tasks, nodes = claims.pop("TASKS", None), claims.get("WORLD_SIZE")
    if tasks and nodes and tasks.value.isdigit() and nodes.value.isdigit() and int(tasks.value) > int(nodes.value):
        claims["PROCESSES"] = tasks
        for ours, theirs in (("PROCESS_RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
            claims[ours] = Claim(environ.get(theirs, ""), f"Slurm ({theirs})")
        per_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
        counts = expand_tasks_per_node(per_node)
        node = environ.get("SLURM_NODEID", "")
        if node.isdigit() and int(node) < len(counts):
            claims["LOCAL_PROCESSES"] = Claim(str(counts[int(node)]), "Slurm (SLURM_STEP_TASKS_PER_NODE)")
    name = next((name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(name)), None)
    if name:
        claims["MASTER_ADDR"] = Claim(expand_nodelist(environ[name])[0], f"Slurm ({name})")


def warn_of_idle_nodes(environ: Mapping[str, str], nodes: int) -> str:
    """What to say of a Slurm job with more nodes than train; empty where all do, or where there is no such job.

    A batch script, and a shell of salloc, run on one of them until they call srun.
    """
    if not environ.get("SLURM_JOB_ID"):
        return ""
    try:
        allotted = len(expand_nodelist(environ.get("SLURM_JOB_NODELIST", "")))
    except LaunchError:
        return ""  # a warning is no reason to end
    if allotted <= nodes:
        return ""
    how = f"srun --nodes={allotted} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 slipway run …"
    return f"warning: this Slurm job has {allotted} nodes, and only {nodes} of them will train. For all of them type: {how}"


def expand_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's `2(x3),1` to [2, 2, 2, 1]; what cannot be read gives an empty list."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, repeat = part.partition("(x")
        repeat = repeat.rstrip(")") or "1"
        if not (count.isdigit() and repeat.isdigit() and int(repeat) <= 65_536):
            return []
        counts += [int(count)] * int(repeat)
    return counts


def _derive_indexed_job(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    # <job>-<index>.<service>.<namespace>.svc.…: node 0 has the same name with index 0. A JobSet's pods are called
    # <set>-<replicated job>-<job>-<pod>.<set>, which ends in the index as well.
    host, dot, domain = fqdn.partition(".")
    job, dash, index = host.rpartition("-")
    if dash and index == environ["JOB_COMPLETION_INDEX"]:
        claims["JOB"] = Claim(job, "Kubernetes (host name)")
        if dot:
            claims["MASTER_ADDR"] = Claim(f"{job}-0.{domain}", "Kubernetes (this pod's full host name)")


def _derive_volcano(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    tasks = [name for name in environ if name.startswith("VC_") and name.endswith("_HOSTS") and environ[name]]
    hosts = [host for name in tasks for host in environ[name].split(",")]
    if hosts:
        claims["WORLD_SIZE"] = Claim(str(len(hosts)), f"Volcano ({', '.join(tasks)})")
    if len(tasks) > 1:  # each counts its pods from 0
        claims.pop("RANK", None)
        raise LaunchError(
            f"A Volcano job of several tasks ({', '.join(tasks)}) does not say which node this is. Add Volcano's pytorch "
            "plugin to the job, or set NNODES, NODE_RANK and MASTER_ADDR."
        )
    if hosts:
        claims["MASTER_ADDR"] = Claim(hosts[0], f"Volcano ({tasks[0]})")


def _derive_open_mpi(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    local, rank, size = claims.pop("LOCAL_PROCESSES", None), claims.get("RANK"), claims.get("WORLD_SIZE")
    if local is None or rank is None or size is None or local.value in ("", "1"):
        claims.pop("LOCAL_RANK", None)
        return
    claims |= {"LOCAL_PROCESSES": local, "PROCESS_RANK": rank, "PROCESSES": size}
    if local.value.isdigit() and rank.value.isdigit() and size.value.isdigit() and int(local.value):
        nodes = -(-int(size.value) // int(local.value))
        claims["WORLD_SIZE"] = Claim(str(nodes), "Open MPI (size / local size)")
        claims["RANK"] = Claim(str(int(rank.value) // int(local.value)), "Open MPI (rank / local size)")


def _derive_skypilot(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    if addresses := environ.get("SKYPILOT_NODE_IPS", "").split():
        claims["MASTER_ADDR"] = Claim(addresses[0], "SkyPilot (SKYPILOT_NODE_IPS)")
    if environ.get("SKYPILOT_NUM_GPUS_PER_NODE") in ("0", "0.0"):
        claims.pop("NPROC_PER_NODE", None)  # a CPU node: nothing is said about processes


PET = Scheduler(
    "Kubeflow Trainer",
    ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"),
    {
        "WORLD_SIZE": ("PET_NNODES",),
        "RANK": ("PET_NODE_RANK",),
        "NPROC_PER_NODE": ("PET_NPROC_PER_NODE",),
        "MASTER_ADDR": ("PET_MASTER_ADDR",),
        "MASTER_PORT": ("PET_MASTER_PORT",),
    },
)
SLURM = Scheduler(
    "Slurm",
    ("SLURM_STEP_ID",),  # a job without a step is the batch script itself, on one node
    {
        "WORLD_SIZE": ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        "RANK": ("SLURM_NODEID",),
        "TASKS": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "JOB": ("SLURM_JOB_ID",),
        "RESTARTS": ("SLURM_RESTART_COUNT",),
    },
    _derive_slurm,
    strict=True,
)
INDEXED_JOB = Scheduler(
    "Kubernetes",
    ("JOB_COMPLETION_INDEX",),
    {"RANK": ("JOB_COMPLETION_INDEX",)},
    _derive_indexed_job,
    strict=True,
)
VOLCANO = Scheduler("Volcano", ("VC_TASK_INDEX",), {"RANK": ("VC_TASK_INDEX",)}, _derive_volcano)
OPEN_MPI = Scheduler(
    "Open MPI",
    ("OMPI_COMM_WORLD_SIZE",),
    {
        "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE",),
        "RANK": ("OMPI_COMM_WORLD_RANK",),
        "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "LOCAL_PROCESSES": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        "JOB": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    },
    _derive_open_mpi,
)
SKYPILOT = Scheduler(
    "SkyPilot",
    ("SKYPILOT_NODE_RANK",),
    {
        "WORLD_SIZE": ("SKYPILOT_NUM_NODES",),
        "RANK": ("SKYPILOT_NODE_RANK",),
        "NPROC_PER_NODE": ("SKYPILOT_NUM_GPUS_PER_NODE",),
        "JOB": ("SKYPILOT_TASK_ID",),
    },
    _derive_skypilot,
    strict=True,
)
SCHEDULERS = (PET, SLURM, INDEXED_JOB, VOLCANO, OPEN_MPI, SKYPILOT)
BEFORE_PLAIN = frozenset({PET.name, SLURM.name})  # these win over plain RANK and WORLD_SIZE, the others do not
