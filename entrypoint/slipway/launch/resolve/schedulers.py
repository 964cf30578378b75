"""One small table per scheduler: what each of its variables means for the job; and Slurm's compressed host lists. The tables of
clouds are in clouds.py. Pure.
"""

import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from slipway.launch.resolve import clouds
from slipway.launch.resolve.scheduler import Claims, JobShape, Reading, Scheduler
from slipway.launch.resolve.sources import Claim
from slipway.protocol.errors import LaunchError


def read_schedulers(environ: Mapping[str, str], fqdn: str) -> tuple[Reading, ...]:
    """Return the readings of all schedulers that left their marks in the environment, in the order of precedence.

    `fqdn` is this host's full name; only there Kubernetes names the Service that the pods share.
    """
    readings = []
    for scheduler in SCHEDULERS:
        if scheduler.is_here(environ):
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
                broken = str(error)  # harmless where another source names the master
            readings.append(Reading(scheduler, claims, broken))
    return _without_outer(environ, tuple(readings))


def _without_outer(environ: Mapping[str, str], readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """The readings without that of a scheduler which only started the starter of this process.

    An mpirun in a Slurm allocation starts its daemons by a step of its own, on the nodes other than its own; what they start sees
    that step as its own. `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE itself, to what it says in SLURM_PROCID and SLURM_NTASKS.
    In a step, an MPI of a single process is what an earlier start left in the environment of the submission.
    Raises LaunchError where both say different things and nothing shows which of them started this process.
    """
    here = [reading.scheduler for reading in readings]
    if SLURM in here:
        readings = tuple(reading for reading in readings if not _is_single_mpi(reading))
        here = [reading.scheduler for reading in readings]
    outer = None
    if SLURM in here and (OPEN_MPI in here or JSRUN in here):
        outer = SLURM
    elif SLURM in here and MPICH in here:
        outer = SLURM if environ.get("MPI_LOCALNRANKS") else MPICH
        tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
        same = (environ["PMI_RANK"], environ["PMI_SIZE"]) == (environ.get("SLURM_PROCID"), tasks)
        if outer == MPICH and not same:
            raise LaunchError(
                f"mpiexec says PMI_RANK={environ['PMI_RANK']} of PMI_SIZE={environ['PMI_SIZE']}, but the Slurm step says "
                f"SLURM_PROCID={environ.get('SLURM_PROCID')} of {tasks} tasks, and nothing shows which of them started this "
                "process. Unset PMI_RANK and PMI_SIZE for Slurm's reading, or SLURM_STEP_ID for mpiexec's."
            )
    return tuple(reading for reading in readings if reading.scheduler != outer)


def _is_single_mpi(reading: Reading) -> bool:
    size = reading.get("WORLD_SIZE")
    mpi = reading.scheduler in (OPEN_MPI, JSRUN, MPICH)
    return mpi and size is not None and size.value == "1" and reading.get("PROCESSES") is None


# How starters of several processes name, by the ends of the names, the variables for how many there are, and which one this is.
# SIZE counts processes only after certain words: TRAIN_BATCH_SIZE does not. The rank of LoRA is that of a matrix.
_SIZE = (
    r"_?[A-Z0-9]+_(?:\w+_)?(?:NUM_NODES|NNODES|NODE_COUNT|NODES_NUM|NUM_HOSTS|NUM_TASKS|NTASKS|NPROCS)"
    r"|[A-Z0-9]+_(?:(?:COMM|WORLD|GLOBAL|JOB|STEP|TASK|GROUP|GANG|NAMESPACE|CLUSTER|NODE|WORKER|POD|REPLICA)_)*SIZE"
)
_INDEX = (
    r"_?[A-Z0-9]+_(?:\w+_)?(?:(?<!LORA_)RANK|RANKID|NODE_INDEX|NODEID|NODE_ID|TASK_INDEX|WORKER_INDEX|PROCID|PROCNO)"
)
_KNOWN = frozenset({"LOCAL", "NODE", "WORLD", "GROUP", "ROLE", "SLURM", "SLIPWAY"})
# How a framework divides a model or its data: set by its user, for processes that it starts itself.
_DIVISIONS = frozenset(
    (
        *("DP", "TP", "PP", "CP", "EP", "ETP", "SP", "MP", "FSDP", "HSDP", "VLLM", "SGLANG", "MEGATRON"),
        *("DATA", "TENSOR", "PIPELINE", "CONTEXT", "EXPERT", "SEQUENCE", "MODEL", "SHARD"),
    )
)


_SET = (
    "If they are one job, with one launcher per node, set NNODES, NODE_RANK and MASTER_ADDR. If each is a job of its own, type "
    "--nnodes 1."
)
# What numbers the processes that PBS's pbsdsh starts, and from which number on there is another: the job's own has 0 and 1.
_PBSDSH = {"PBS_NODENUM": 1, "PBS_TASKNUM": 2}


def _family(name: str) -> str:
    """The word by which variables of one starter belong together; HTCondor's begin with an underscore."""
    return name.lstrip("_").partition("_")[0]


def explain_unknown_start(environ: Mapping[str, str]) -> str:
    """What to set where the environment looks as if an unknown starter started several of these; else empty."""
    for variable, least in _PBSDSH.items():
        if (number := environ.get(variable, "")).isdecimal() and int(number) >= least:
            return f"{variable}={number}: this is one of several processes that PBS started, and it does not say how many. {_SET}"
    if tasks := _tensorflow_tasks(environ.get("TF_CONFIG", "")):
        return f"TF_CONFIG names {tasks} tasks, and this command was started for one of them. {_SET}"
    for size, count in environ.items():
        family = _family(size)
        if (
            family in _KNOWN | _DIVISIONS
            or (family == "PMI" and not environ.get("PMI_RANK"))
            or not re.fullmatch(_SIZE, size)
            or not count.isdecimal()
            or int(count) < 2
        ):
            continue
        ranks = (name for name in environ if _family(name) == family and re.fullmatch(_INDEX, name))
        if name := next(
            (name for name in ranks if environ[name].isdecimal() and int(environ[name]) < int(count)), None
        ):
            return (
                f"{size}={count} and {name}={environ[name]} look as if this command was started {count} times, by a starter that "
                f"Slipway does not know. {_SET}"
            )
    return ""


def _tensorflow_tasks(config: str) -> int:
    """How many processes TensorFlow's TF_CONFIG names, which Kubeflow's TFJob sets for any program; 0 where it is one alone."""
    try:
        cluster, task = (json.loads(config)[name] for name in ("cluster", "task"))
        tasks = sum(len(addresses) for addresses in cluster.values())
        return tasks if tasks > 1 and "index" in task else 0
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


# An index without a size, or a size without an index: the name of the first, and what is missing.
_HALVES = (("PMI_SIZE", ("PMI_RANK",)), ("PMIX_RANK", ("OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "SLURM_STEP_ID")))


def warn_of_half_start(environ: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable of a starter that means nothing alone, and may be left from an earlier start."""
    for name, others in _HALVES:
        value = environ.get(name, "")
        alone = value.isdecimal() and not any(map(environ.get, others))
        if alone and not (name == "PMI_SIZE" and int(value) < 2):
            yield (
                f"warning: {name}={value} is ignored, because {' and '.join(others)} "
                f"{'is' if len(others) == 1 else 'are'} not set. Where this is one of several launchers, set NNODES, NODE_RANK "
                "and MASTER_ADDR"
            )


def _derive_slurm(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    job, number = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    step = f"{job}.{number}"
    if number != "0":  # a second srun of the same job is another run; a requeued job begins with step 0 again
        claims["JOB"] = Claim(step, "Slurm (SLURM_JOB_ID, SLURM_STEP_ID)")
    # Even, so that torchrun's store fits beside it, and below 32768, where Linux starts its ephemeral ports.
    claims["MASTER_PORT"] = Claim(str(20_000 + zlib.crc32(step.encode()) % 6_384 * 2), f"Slurm (hash of step {step})")
    tasks, nodes = claims.pop("TASKS", None), claims.get("WORLD_SIZE")
    if tasks and nodes and tasks.value.isdecimal() and nodes.value.isdecimal() and int(tasks.value) > int(nodes.value):
        claims["PROCESSES"] = tasks
        for ours, theirs in (("PROCESS_RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
            claims[ours] = Claim(environ.get(theirs, ""), f"Slurm ({theirs})")
        per_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
        counts = expand_tasks_per_node(per_node)
        node = environ.get("SLURM_NODEID", "")
        if node.isdecimal() and int(node) < len(counts):
            claims["LOCAL_PROCESSES"] = Claim(str(counts[int(node)]), "Slurm (SLURM_STEP_TASKS_PER_NODE)")
    name = next((name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(name)), None)
    if name:
        claims["MASTER_ADDR"] = Claim(expand_nodelist(environ[name])[0], f"Slurm ({name})")


def _idle_components(environ: Mapping[str, str]) -> list[str]:
    """The nodes of a heterogeneous job that are not in the step or job of this launcher."""
    idle: list[str] = []
    size = environ.get("SLURM_HET_SIZE", "")
    with suppress(LaunchError):
        used = expand_nodelist(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
        for group in range(int(size) if size.isdecimal() else 0):
            nodes = expand_nodelist(environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", ""))
            idle += [node for node in nodes if node not in used]
    return idle


def _note_slurm(environ: Mapping[str, str], place: JobShape) -> Iterator[str]:
    """Warn of a job with more nodes than are used, and of a launcher that was perhaps typed in a shell of `srun --pty`.

    A batch script, and a shell of salloc, run on one node until they call srun. `srun --pty` starts its shell as task 0, and the
    other tasks' shells end at once. Its steps inherit SLURM_PTY_PORT: nothing in the environment says whether this is the
    shell's own task or one of a later srun.
    """
    allotted = 0
    with suppress(LaunchError):  # a warning is no reason to end
        allotted = len(expand_nodelist(environ.get("SLURM_JOB_NODELIST", "")))
    if environ.get("SLURM_JOB_ID") and allotted > place.nodes:
        how = f"srun --nodes={allotted} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 slipway run …"
        only = f"and only {place.nodes} of them will be used. For all of them type: {how}"
        yield f"warning: this Slurm job has {allotted} nodes, {only}"
    if idle := _idle_components(environ):
        groups = ",".join(str(group) for group in range(int(environ["SLURM_HET_SIZE"])))
        yield (
            f"warning: this Slurm job is heterogeneous, and the nodes of its other components stay idle: {', '.join(idle)}. "
            f"Submit one component alone, or type in your own batch script: srun --het-group={groups} --ntasks-per-node=1 "
            "--kill-on-bad-exit=0 --wait=0 slipway run …"
        )
    if place.launchers > 1 and environ.get("SLURM_PTY_PORT") and environ.get("SLURM_STEP_ID"):
        yield (
            f"warning: SLURM_PTY_PORT is set, so `srun --pty` started this command, or the shell in which you typed it. It "
            f"counts as one of {place.launchers} launchers that srun started on this node. If you typed it in a shell, the "
            "others never start: add --standalone"
        )


def _derive_indexed_job(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    # <job>-<index>.<service>.<namespace>.svc.…: node 0 has the same name with index 0. A JobSet's pods are called
    # <set>-<replicated job>-<job>-<pod>.<set>, which ends in the index as well.
    host, dot, domain = fqdn.partition(".")
    job, dash, index = host.rpartition("-")
    if dash and index == environ["JOB_COMPLETION_INDEX"]:
        claims["JOB"] = Claim(job, "Kubernetes (host name)")
        if dot:
            claims["MASTER_ADDR"] = Claim(f"{job}-0.{domain}", "Kubernetes (this pod's full host name)")


def _note_indexed_job(environ: Mapping[str, str], place: JobShape) -> Iterator[str]:
    if environ.get("JOB_COMPLETION_INDEX") and place.nodes_source == "default":
        yield "an Indexed Job does not report how many pods it has; for more than one, set NNODES"


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


def _derive_mpich(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    if "LOCAL_PROCESSES" not in claims and (size := claims.get("WORLD_SIZE")) and size.value != "1":
        for name in ("WORLD_SIZE", "RANK"):
            claims.pop(name, None)
        raise LaunchError(
            f"mpiexec started {size.value} processes (PMI_SIZE), but does not report how many of them are on this node. Set "
            "NNODES, NODE_RANK and MASTER_ADDR, or start one launcher per node by hand."
        )
    _derive_mpi("MPICH", environ, fqdn, claims)


def _derive_mpi(name: str, environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    """What an mpirun set: for one launcher per node or, where several are on this node, for one per process."""
    # In an allocation of Slurm mpirun starts rank 0 on its first node.
    if hosts := environ.get("SLURM_JOB_NODELIST"):
        claims["MASTER_ADDR"] = Claim(expand_nodelist(hosts)[0], "Slurm (SLURM_JOB_NODELIST)")
    local, rank, size = claims.pop("LOCAL_PROCESSES", None), claims.get("RANK"), claims.get("WORLD_SIZE")
    if local is None or rank is None or size is None or local.value in ("", "1"):
        claims.pop("LOCAL_RANK", None)
        return
    claims |= {"LOCAL_PROCESSES": local, "PROCESS_RANK": rank, "PROCESSES": size}
    if local.value.isdecimal() and rank.value.isdecimal() and size.value.isdecimal() and int(local.value):
        nodes = -(-int(size.value) // int(local.value))
        claims["WORLD_SIZE"] = Claim(str(nodes), f"{name} (size / local size)")
        claims["RANK"] = Claim(str(int(rank.value) // int(local.value)), f"{name} (rank / local size)")


def _derive_lsf(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    # `blaunch` numbers its tasks from 1, one per host. LSB_MCPU_HOSTS is `host slots host slots …`.
    hosts = environ.get("LSB_MCPU_HOSTS", "").split()[::2]
    if hosts:
        claims["WORLD_SIZE"] = Claim(str(len(hosts)), "LSF (LSB_MCPU_HOSTS)")
        claims["MASTER_ADDR"] = Claim(hosts[0], "LSF (LSB_MCPU_HOSTS)")
    if (task := environ["LSF_PM_TASKID"]).isdecimal() and int(task):
        claims["RANK"] = Claim(str(int(task) - 1), "LSF (LSF_PM_TASKID - 1)")


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
    before_plain=True,
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
    before_plain=True,
    restarts_tasks=False,
    # What enroot's PyTorch hook and pyxis write into the variables of every task, whatever the job meant.
    hook={"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"},
    gpus="SLURM_GPUS_ON_NODE",
    cores="SLURM_CPUS_ON_NODE",
    cores_per_task="SLURM_CPUS_PER_TASK",
    notes=_note_slurm,
)
INDEXED_JOB = Scheduler(
    "Kubernetes",
    ("JOB_COMPLETION_INDEX",),
    {"RANK": ("JOB_COMPLETION_INDEX",)},
    _derive_indexed_job,
    strict=True,
    full_name=True,
    replaces_nodes=True,
    address_advice=lambda environ: (
        "give the pod template a `subdomain` that names a headless Service, or set MASTER_ADDR"
    ),
    notes=_note_indexed_job,
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
    partial(_derive_mpi, "Open MPI"),
    address_advice=lambda environ: "add -x MASTER_ADDR=HOST to mpirun",
)
JSRUN = Scheduler(
    "jsrun",
    ("JSM_NAMESPACE_SIZE",),
    {
        "WORLD_SIZE": ("JSM_NAMESPACE_SIZE",),
        "RANK": ("JSM_NAMESPACE_RANK",),
        "LOCAL_RANK": ("JSM_NAMESPACE_LOCAL_RANK",),
        "LOCAL_PROCESSES": ("JSM_NAMESPACE_LOCAL_SIZE",),
        "JOB": ("LSB_JOBID",),
    },
    partial(_derive_mpi, "jsrun"),
)
# Hydra's mpiexec, of MPICH and of Intel MPI; Cray's PALS sets PMI_LOCAL_…
MPICH = Scheduler(
    "MPICH",
    ("PMI_SIZE",),
    {
        "WORLD_SIZE": ("PMI_SIZE",),
        "RANK": ("PMI_RANK",),
        "LOCAL_RANK": ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        "LOCAL_PROCESSES": ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    },
    _derive_mpich,
    needs=("PMI_RANK",),
    address_advice=lambda environ: "add -genv MASTER_ADDR HOST to mpiexec",
)
LSF = Scheduler(
    "LSF",
    ("LSF_PM_TASKID",),  # a job without it is the batch script itself, on its first host
    {"JOB": ("LSB_JOBID",)},
    _derive_lsf,
    strict=True,
    needs=("LSB_MCPU_HOSTS",),
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
SCHEDULERS = (
    *(PET, clouds.INSTANT_CLUSTER, clouds.AZURE_ML, SLURM, INDEXED_JOB, VOLCANO, OPEN_MPI, JSRUN, MPICH, LSF, SKYPILOT),
    *(clouds.AWS_BATCH, clouds.LEADER_WORKER_SET, clouds.SAGEMAKER, clouds.VERTEX_AI, clouds.DSTACK),
)


def needs_full_name(environ: Mapping[str, str]) -> bool:
    """Whether a scheduler that is here needs this host's full name."""
    return any(scheduler.full_name and scheduler.is_here(environ) for scheduler in SCHEDULERS)


def granted_cores(environ: Mapping[str, str]) -> int:
    """The number of this node's cores that a scheduler granted to the job; 0 where none says so."""
    given = [environ.get(scheduler.cores, "") for scheduler in SCHEDULERS if scheduler.cores]
    return max((int(count) for count in given if count.isdecimal()), default=0)


LIMIT = 65_536  # nodes; Slurm's own MAX_RANGE (64k) for one expression
_NAME = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")
_RANGE = r"(\d+)(?:-(\d+))?"


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Return the host names of a Slurm host list in its own order. Raises LaunchError where it cannot be read.

    `gpu[07-08],login` -> `gpu07`, `gpu08`, `login`, without `scontrol`, which no container has. The grammar is that of `scontrol
    show hostnames`, with several brackets in one name: https://slurm.schedmd.com/scontrol.html (hostlist expressions).
    """
    hosts: list[str] = []
    position = 0
    while True:
        name = _NAME.match(text, position)
        if name is None:
            raise _unreadable(text, f"a host name was expected at character {position + 1}")
        hosts += _expand_name(name[0], text)
        if len(hosts) > LIMIT:
            raise _unreadable(text, f"it names more than {LIMIT} hosts")
        position = name.end()
        if position == len(text):
            return tuple(hosts)
        if text[position] != ",":
            raise _unreadable(text, f"a comma was expected at character {position + 1}")
        position += 1


def _expand_name(name: str, text: str) -> list[str]:
    literals = re.split(r"\[([0-9,-]+)\]", name)  # literal, ranges, literal, ranges, ..., literal
    choices = [_expand_ranges(part, text) if odd % 2 else [part] for odd, part in enumerate(literals)]
    if math.prod(map(len, choices)) > LIMIT:
        raise _unreadable(text, f"it names more than {LIMIT} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = re.fullmatch(_RANGE, part)
        if found is None:
            raise _unreadable(text, f"[{ranges}] is not a list of numbers and ranges")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) >= LIMIT:
            raise _unreadable(text, f"{part} is not a range that can be counted")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _unreadable(text: str, why: str) -> LaunchError:
    return LaunchError(
        f"The Slurm host list {text[:200]!r} cannot be read: {why}. "
        "Give the address of the first node yourself: --master-addr HOST."
    )


def expand_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's `2(x3),1` to [2, 2, 2, 1]; what cannot be read gives an empty list."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, repeat = part.partition("(x")
        repeat = repeat.rstrip(")") or "1"
        if not (count.isdecimal() and repeat.isdecimal() and int(repeat) <= LIMIT):
            return []
        counts += [int(count)] * int(repeat)
    return counts
