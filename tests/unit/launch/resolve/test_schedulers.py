"""What each scheduler's variables say about the job, and what they leave open."""

import pytest
from environments import (
    BARE_SRUN,
    INDEXED_JOB,
    JSRUN,
    LSF,
    MPICH,
    OPEN_MPI,
    OPEN_MPI_TASKS,
    SKYPILOT,
    TRAINER,
    TWO_TASKS_PER_NODE,
    VOLCANO,
    VOLCANO_PYTORCH,
)

from slipway.launch.resolve.scheduler import Reading
from slipway.launch.resolve.schedulers import needs_full_name, read_schedulers

POD = "lm-2.lm.default.svc.cluster.local"


def read(environ: dict[str, str], fqdn: str = POD) -> Reading:
    """What the one scheduler says that left its mark."""
    (reading,) = read_schedulers(environ, fqdn)
    return reading


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (TRAINER | {"JOB_COMPLETION_INDEX": ""}, {"WORLD_SIZE": "3", "RANK": "1", "NPROC_PER_NODE": "auto"}),
        (BARE_SRUN, {"WORLD_SIZE": "2", "RANK": "1", "JOB": "7", "MASTER_ADDR": "gpu07", "TASKS": None, "PROCESSES": None}),
        (BARE_SRUN | {"SLURM_STEP_ID": "3"}, {"JOB": "7.3"}),
        (BARE_SRUN | {"SLURM_STEP_ID": "00"}, {"JOB": "7.00"}),
        (BARE_SRUN | {"SLURM_JOB_ID": ""}, {"JOB": None}),
        (BARE_SRUN | {"SLURM_STEP_NODELIST": ""}, {"MASTER_ADDR": "gpu07"}),
        (BARE_SRUN | {"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, {"MASTER_ADDR": None}),
        (BARE_SRUN | {"SLURM_STEP_NODELIST": "b[7-9]", "SLURM_JOB_NODELIST": "a[1-9]"}, {"MASTER_ADDR": "b7"}),
        # One launcher per task where there are more tasks than nodes.
        (
            TWO_TASKS_PER_NODE,
            {"PROCESSES": "4", "PROCESS_RANK": "3", "LOCAL_RANK": "1", "LOCAL_PROCESSES": "2", "TASKS": None},
        ),
        (BARE_SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, {"PROCESSES": None, "PROCESS_RANK": None}),
        (BARE_SRUN | {"SLURM_STEP_NUM_TASKS": "3"}, {"PROCESSES": "3"}),
        (BARE_SRUN | {"SLURM_STEP_NUM_TASKS": "many"}, {"PROCESSES": None}),
        (TWO_TASKS_PER_NODE | {"SLURM_STEP_TASKS_PER_NODE": "3,1"}, {"LOCAL_PROCESSES": "1"}),
        (TWO_TASKS_PER_NODE | {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "0"}, {"LOCAL_PROCESSES": "3"}),
        (TWO_TASKS_PER_NODE | {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "2"}, {"LOCAL_PROCESSES": None}),
        (TWO_TASKS_PER_NODE | {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "3"}, {"LOCAL_PROCESSES": None}),
        (TWO_TASKS_PER_NODE | {"SLURM_NODEID": ""}, {"LOCAL_PROCESSES": None, "RANK": None}),
        (
            TWO_TASKS_PER_NODE | {"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_TASKS_PER_NODE": "4,2"},
            {"LOCAL_PROCESSES": "2"},
        ),
        # A pod's full name says its job, its index and the Service.
        (INDEXED_JOB, {"RANK": "2", "JOB": "lm", "MASTER_ADDR": "lm-0.lm.default.svc.cluster.local", "WORLD_SIZE": None}),
        (INDEXED_JOB | {"JOB_COMPLETION_INDEX": "1"}, {"RANK": "1", "JOB": None, "MASTER_ADDR": None}),
        # Volcano
        (VOLCANO, {"WORLD_SIZE": "3", "RANK": "2", "MASTER_ADDR": "lm-worker-0.lm"}),
        (VOLCANO | {"VC_WORKER_HOSTS": ""}, {"WORLD_SIZE": None, "RANK": "2", "MASTER_ADDR": None}),
        (VOLCANO | {"OTHER_HOSTS": "a,b", "VC_WORKER_NAMES": "c"}, {"WORLD_SIZE": "3"}),
        (VOLCANO_PYTORCH, {"WORLD_SIZE": "3", "RANK": None, "MASTER_ADDR": None}),
        # Open MPI counts processes.
        (OPEN_MPI, {"WORLD_SIZE": "2", "RANK": "1", "PROCESSES": None, "LOCAL_RANK": None, "LOCAL_PROCESSES": None}),
        (
            OPEN_MPI_TASKS,
            {"WORLD_SIZE": "2", "RANK": "1", "PROCESSES": "8", "PROCESS_RANK": "5", "LOCAL_RANK": "1", "LOCAL_PROCESSES": "4"},
        ),
        (OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_SIZE": "9", "OMPI_COMM_WORLD_RANK": "8"}, {"WORLD_SIZE": "3", "RANK": "2"}),
        (OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_LOCAL_SIZE": ""}, {"WORLD_SIZE": "8", "PROCESSES": None, "LOCAL_RANK": None}),
        (OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_LOCAL_SIZE": "0"}, {"WORLD_SIZE": "8", "RANK": "5", "PROCESSES": "8"}),
        (OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_RANK": "x"}, {"WORLD_SIZE": "8", "RANK": "x", "PROCESS_RANK": "x"}),
        (OPEN_MPI_TASKS | {"OMPI_COMM_WORLD_RANK": ""}, {"WORLD_SIZE": "8", "RANK": None, "PROCESSES": None}),
        # LSF numbers its tasks from 1.
        (LSF, {"WORLD_SIZE": "2", "RANK": "1", "JOB": "41", "MASTER_ADDR": "n0"}),
        (LSF | {"LSF_PM_TASKID": "3"}, {"RANK": "2"}),
        (LSF | {"LSF_PM_TASKID": "1"}, {"RANK": "0"}),
        (LSF | {"LSF_PM_TASKID": "0"}, {"RANK": None}),
        # SkyPilot
        (SKYPILOT, {"WORLD_SIZE": "2", "RANK": "1", "NPROC_PER_NODE": "8", "MASTER_ADDR": "10.0.0.4"}),
        (SKYPILOT | {"SKYPILOT_NUM_GPUS_PER_NODE": "0"}, {"NPROC_PER_NODE": None}),
        (SKYPILOT | {"SKYPILOT_NUM_GPUS_PER_NODE": "0.0"}, {"NPROC_PER_NODE": None}),
        (SKYPILOT | {"SKYPILOT_NODE_IPS": ""}, {"MASTER_ADDR": None}),
    ],
)  # fmt: skip
def test_what_is_said_about_the_job(environ: dict[str, str], told: dict[str, str | None]) -> None:
    reading = read(environ)
    claims = {name: reading.get(name) for name in told}
    assert {name: claim.value if claim else None for name, claim in claims.items()} == told


@pytest.mark.parametrize(
    ("fqdn", "job", "address"),
    [
        ("lm-2", "lm", None),  # without a Service
        ("my-lm-2.svc", "my-lm", "my-lm-0.svc"),
        ("lm-12.lm", None, None),
        ("lm2.lm", None, None),
        ("2.lm", None, None),
        ("host", None, None),
    ],
)
def test_node_0s_name_is_read_from_the_pods_own(fqdn: str, job: str | None, address: str | None) -> None:
    reading = read(INDEXED_JOB, fqdn)
    claims = (reading.get("JOB"), reading.get("MASTER_ADDR"))
    assert tuple(claim.value if claim else None for claim in claims) == (job, address)


@pytest.mark.parametrize(
    ("environ", "strict", "before"),
    [
        (TRAINER | {"JOB_COMPLETION_INDEX": ""}, False, True),
        (BARE_SRUN, True, True),
        (INDEXED_JOB, True, False),
        (VOLCANO, False, False),
        (OPEN_MPI, False, False),
        (JSRUN, False, False),
        (MPICH, False, False),
        (LSF, True, False),
        (SKYPILOT, True, False),
    ],
)
def test_whose_word_beats_plain_variables_and_who_must_not_be_contradicted(
    environ: dict[str, str], strict: bool, before: bool
) -> None:
    reading = read(environ)
    assert (reading.scheduler.strict, reading.scheduler.before_plain, reading.broken) == (strict, before, "")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (BARE_SRUN | {"SLURM_STEP_NODELIST": "gpu[07-"}, "gpu[07-"),
        (VOLCANO_PYTORCH, "VC_MASTER_HOSTS, VC_WORKER_HOSTS"),
    ],
)
def test_what_cannot_be_read_is_kept_for_where_nobody_else_names_the_master(environ: dict[str, str], says: str) -> None:
    assert says in read(environ).broken


@pytest.mark.parametrize(("environ", "needed"), [({}, False), (BARE_SRUN, False), (INDEXED_JOB, True)])
def test_only_kubernetes_costs_a_question_for_the_full_name(environ: dict[str, str], needed: bool) -> None:
    assert needs_full_name(environ) == needed


def test_a_machine_without_a_scheduler_has_no_readings() -> None:
    unmarked = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "PMIX_NAMESPACE": "x", "VC_WORKER_HOSTS": "a", "PET_X": "1"}
    assert read_schedulers(unmarked, POD) == ()


def test_of_several_schedulers_the_nearest_comes_first() -> None:
    names = [reading.scheduler.name for reading in read_schedulers(TRAINER | BARE_SRUN | SKYPILOT | VOLCANO, POD)]
    assert names == ["Kubeflow Trainer", "Slurm", "Kubernetes", "Volcano", "SkyPilot"]
    names = [reading.scheduler.name for reading in read_schedulers(BARE_SRUN | SKYPILOT | OPEN_MPI, POD)]
    assert names == ["Open MPI", "SkyPilot"], "Slurm's step only started mpirun's daemons"
