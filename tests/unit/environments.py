"""One real environment per row of the contract, as each system's documentation or source says that it sets it.

`env` holds what that system puts into the container, not what Slipway reads; so each row also shows what is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """An environment and what it means. `want` holds attributes of Topology; `sources` who gave a value."""

    name: str
    env: dict[str, str]
    want: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    fqdn: str = "host"
    options: dict[str, str] = field(default_factory=dict)


def place(nodes: int, rank: int, addr: str, port: int = 0, **more: Any) -> dict[str, Any]:
    """The attributes that every row states."""
    stated = {"nodes": nodes, "node_rank": rank, "master_addr": addr, **more}
    return {**stated, "master_port": port} if port else stated


# What `srun` gives each task: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
BARE_SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "gpu08",
    "SLURM_SRUN_COMM_HOST": "10.0.0.1", "SLURM_STEP_RESV_PORTS": "", "SLURM_GTIDS": "1", "SLURM_CPUS_ON_NODE": "8",
}  # fmt: skip
# A step of a job whose batch script has four nodes: the step's own names win over the job's.
STEP_OF_SBATCH = BARE_SRUN | {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "3", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_JOB_PARTITION": "train",
    "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": "/home/me", "SLURM_JOB_GPUS": "0,1",
}  # fmt: skip
# --ntasks-per-node=2, on nodes without GPUs.
TWO_TASKS_PER_NODE = BARE_SRUN | {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2",
}  # fmt: skip
# pyxis, image with PYTORCH_VERSION in its ENV, enroot's hook not installed (pyxis: README, "PyTorch" entry of pyxis_slurmstepd.c)
PYXIS = {"PYTORCH_VERSION": "2.10.0", "RANK": "1", "LOCAL_RANK": "0"}
# ... and installed: enroot, conf/hooks/extra/50-slurm-pytorch.sh; OMP_NUM_THREADS only with more tasks than nodes.
ENROOT = PYXIS | {"MASTER_ADDR": "gpu07", "MASTER_PORT": str(61_000 + 7 % 4536), "WORLD_SIZE": "2"}
ENROOT_TASKS = ENROOT | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
# https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (host name `<job>-<index>`)
INDEXED_JOB = {
    "JOB_COMPLETION_INDEX": "2",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_PORT": "tcp://10.96.0.1",
}
# kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go; its pods belong to a JobSet, so they have an index too.
TRAINER = {
    "PET_NNODES": "3", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1", "PET_MASTER_PORT": "29500",
    "PET_MASTER_ADDR": "mnist-node-0-0.mnist", "JOB_COMPLETION_INDEX": "1",
}  # fmt: skip
# kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go: releases before 1.6 set plain names, in nodes ...
PYTORCHJOB_OLD = {
    "PYTHONUNBUFFERED": "0", "MASTER_PORT": "23456", "MASTER_ADDR": "mnist-master-0", "WORLD_SIZE": "3", "RANK": "2",
}  # fmt: skip
# ... since 1.7 WORLD_SIZE counts processes (replicas x nprocPerNode), and PET_* says the rest.
PYTORCHJOB_NEW = {
    "PYTHONUNBUFFERED": "1", "MASTER_PORT": "23456", "MASTER_ADDR": "mnist-master-0", "WORLD_SIZE": "8", "RANK": "1",
    "PET_MASTER_PORT": "23456", "PET_MASTER_ADDR": "mnist-master-0", "PET_NNODES": "2", "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
}  # fmt: skip
# volcano-sh/volcano, docs/user-guide/how_to_use_{env,svc,pytorch}_plugin.md
VOLCANO = {
    "VC_WORKER_HOSTS": "lm-worker-0.lm,lm-worker-1.lm,lm-worker-2.lm", "VC_WORKER_NUM": "3", "VC_TASK_INDEX": "2",
    "VK_TASK_INDEX": "2",
}  # fmt: skip
VOLCANO_PYTORCH = {
    "MASTER_ADDR": "lm-master-0.lm", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "2", "VC_TASK_INDEX": "1",
    "VC_MASTER_HOSTS": "lm-master-0.lm", "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "2", "VK_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "lm-worker-0.lm,lm-worker-1.lm",
}  # fmt: skip
# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; MASTER_ADDR through `mpirun -x`
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_NODE_RANK": "0", "MASTER_ADDR": "n0",
}  # fmt: skip
OPEN_MPI_TASKS = OPEN_MPI | {
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_UNIVERSE_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_NODE_RANK": "1",
}  # fmt: skip
# https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html#environment-variables-for-run
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5", "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-2026-11-21-06-50-00-000001_lm_1",
    "SKYPILOT_CLUSTER_INFO": '{"cluster_name": "lm"}',
}  # fmt: skip
# Hydra's mpiexec, of MPICH and of Intel MPI, four processes on two nodes, and what it was given for one node alone
MPICH = {
    "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "5", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_ID": "3",
    "MASTER_ADDR": "n0",
}  # fmt: skip
MPICH_ONE_NODE = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "5"}
# `srun --mpi=pmi2`: mpi/pmi2 of Slurm sets these beside its own
PMI2 = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "PMI_JOBID": "7.0"}
# What a program that was started by `mpirun -n 1`, or that imported mpi4py, leaves to all that it starts
LONE_MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}  # fmt: skip
# An mpirun in an allocation of three nodes starts its daemons by srun on the two others, as seen on the last: one per node
OPEN_MPI_IN_SLURM = BARE_SRUN | {
    "SLURM_NNODES": "3", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "gpu[06-08]", "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_NAMESPACE": "prterun-gpu06-4711@1",
}  # fmt: skip
# ... and on its own node, which belongs to no step
OPEN_MPI_ON_NODE_0 = {
    "SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "gpu[06-08]", "SLURM_NODELIST": "gpu[06-08]",
    "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_NAMESPACE": "prterun-gpu06-4711@1", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
}  # fmt: skip
# jsrun of IBM's Spectrum LSF (JSM); and a task that `blaunch` started, LSF_PM_TASKID counts from 1
JSRUN = {
    "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_LOCAL_RANK": "0", "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "LSB_JOBID": "41", "MASTER_ADDR": "n0",
}  # fmt: skip
LSF = {
    "LSB_JOBID": "41", "LSB_MCPU_HOSTS": "n0 8 n1 8 ", "LSB_HOSTS": "n0 n0 n1 n1", "LSB_DJOB_NUMPROC": "16", "LSF_PM_TASKID": "2",
}  # fmt: skip
# https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html, a child node; the main node has index 1
AWS_BATCH = {
    "AWS_BATCH_JOB_ID": "5e1f0a2b-11#0", "AWS_BATCH_JOB_ATTEMPT": "1", "AWS_BATCH_JOB_NUM_NODES": "3",
    "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1", "AWS_BATCH_JQ_NAME": "train",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.9",
}  # fmt: skip
AWS_BATCH_MAIN = {name: value for name, value in AWS_BATCH.items() if "IPV4" not in name} | {
    "AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_ATTEMPT": "2",
}  # fmt: skip
# https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/
LEADER_WORKER_SET = {
    "LWS_LEADER_ADDRESS": "lm-0.lm.default", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}  # fmt: skip
# https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "8", "SM_NUM_CPUS": "96",
    "TRAINING_JOB_NAME": "lm-2026-11-21", "SM_NETWORK_INTERFACE_NAME": "eth0",
}  # fmt: skip
# https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu: type PyTorch, one process per node, and two
AZURE_ML = {
    "AZUREML_NODE_COUNT": "2", "AZUREML_RUN_ID": "lm_41", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "WORLD_SIZE": "2",
    "RANK": "1", "NODE_RANK": "1", "LOCAL_RANK": "0",
}  # fmt: skip
AZURE_ML_PROCESSES = AZURE_ML | {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
# ... and type MPI
AZURE_ML_MPI = OPEN_MPI | {"AZUREML_NODE_COUNT": "2", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000", "MASTER_ADDR": ""}
# https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
VERTEX_AI = {
    "CLUSTER_SPEC": '{"cluster":{"workerpool0":["train-workerpool0-7:2222"],"workerpool1":["train-workerpool1-7-0:2222",'
    '"train-workerpool1-7-1:2222"]},"environment":"cloud","task":{"type":"workerpool1","index":1,"trial":"x"}}',
    "CLOUD_ML_JOB_ID": "7",
}  # fmt: skip
# https://dstack.ai/docs/concepts/tasks#distributed-tasks
DSTACK = {
    "DSTACK_NODES_NUM": "2", "DSTACK_NODE_RANK": "1", "DSTACK_MASTER_NODE_IP": "10.0.0.4", "DSTACK_GPUS_NUM": "16",
    "DSTACK_GPUS_PER_NODE": "8", "DSTACK_NODES_IPS": "10.0.0.4\n10.0.0.5", "DSTACK_RUN_NAME": "lm",
}  # fmt: skip
# https://docs.runpod.io/instant-clusters/configuration
INSTANT_CLUSTER = {
    "NUM_NODES": "2", "NODE_RANK": "1", "NUM_TRAINERS": "8", "WORLD_SIZE": "16", "PRIMARY_ADDR": "10.65.0.2",
    "MASTER_ADDR": "10.65.0.2", "PRIMARY_PORT": "29400", "MASTER_PORT": "29400", "NODE_ADDR": "10.65.0.3",
    "HOST_NODE_ADDR": "10.65.0.2:29400",
}  # fmt: skip
# What Ray Train's TorchTrainer gives each worker: https://docs.ray.io/en/latest/train/api/api.html
RAY = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "45123", "RAY_JOB_ID": "01000000", "ACCELERATE_TORCH_DEVICE": "cpu",
}  # fmt: skip
# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables, set by somebody else's launcher
PER_PROCESS = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "29500",
}  # fmt: skip

PLAIN = {"MASTER_ADDR": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "2"}
PER_NODE: dict[str, Any] = {"level": "node", "processes_per_node": 2}

CASES = (
    Case("nothing set", {}, place(1, 0, "127.0.0.1", 40_001, scheduler="none", **PER_NODE), {"WORLD_SIZE": "default"}),
    Case("empty variables", dict.fromkeys((*PLAIN, "NNODES", "SLURM_STEP_ID"), ""), place(1, 0, "127.0.0.1", **PER_NODE)),
    Case("plain", PLAIN, place(2, 1, "10.0.0.1", 29_500, scheduler="none"), {"RANK": "environment (RANK)"}),
    Case("plain, eight GPUs", PLAIN, place(2, 1, "10.0.0.1", processes_per_node=8, backend="nccl"), gpus=8),
    Case("plain, own port", PLAIN | {"MASTER_PORT": "4000"}, place(2, 1, "10.0.0.1", 4000)),
    Case("RANK=0 alone", {"RANK": "0"}, place(1, 0, "127.0.0.1", 40_001)),
    Case(
        "torchrun's names", {}, place(2, 1, "n0", 1234, processes_per_node=3), {"RANK": "command line (--node-rank)"},
        options={"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "1234", "NPROC_PER_NODE": "3"},
    ),
    Case("NNODES", PLAIN | {"NNODES": "4", "NODE_RANK": "3"}, place(4, 3, "10.0.0.1"), {"RANK": "environment (NODE_RANK)"}),
    Case("min:max equal", PLAIN | {"NNODES": "2:2"}, place(2, 1, "10.0.0.1", least=2, elastic=False)),
    Case("min:max", PLAIN | {"WORLD_SIZE": "2:4"}, place(4, 1, "10.0.0.1", least=2, elastic=True, group_rank=1)),
    Case(
        "Kubeflow Trainer v2", TRAINER, place(3, 1, "mnist-node-0-0.mnist", 29_500, scheduler="Kubeflow Trainer"),
        {"RANK": "Kubeflow Trainer (PET_NODE_RANK)"}, fqdn="mnist-node-0-1.mnist.default.svc.cluster.local",
    ),
    Case("Kubeflow Trainer, GPUs", TRAINER, place(3, 1, "mnist-node-0-0.mnist", processes_per_node=4), gpus=4),
    Case("PET_NNODES=1:2", TRAINER | {"PET_NNODES": "1:2"}, place(2, 1, "mnist-node-0-0.mnist", least=1, elastic=True)),
    Case("PET_NNODES=2:2", TRAINER | {"PET_NNODES": "2:2"}, place(2, 1, "mnist-node-0-0.mnist")),
    Case("PyTorchJob, old", PYTORCHJOB_OLD, place(3, 2, "mnist-master-0", 23_456)),
    Case(
        "PyTorchJob, new", PYTORCHJOB_NEW, place(2, 1, "mnist-master-0", 23_456, processes_per_node=4, level="node"),
        {"WORLD_SIZE": "Kubeflow Trainer (PET_NNODES)"}, gpus=4,
    ),
    Case("bare srun", BARE_SRUN, place(2, 1, "gpu07", scheduler="Slurm", job="7", **PER_NODE), {"RANK": "Slurm (SLURM_NODEID)"}),
    Case("a step of sbatch", STEP_OF_SBATCH, place(2, 0, "gpu03", job="42.3", **PER_NODE)),
    Case("the batch script itself", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}, place(1, 0, "127.0.0.1", scheduler="none")),
    Case("several brackets", BARE_SRUN | {"SLURM_STEP_NODELIST": "r[1-2]n[07,09]"}, place(2, 1, "r1n07")),
    Case("differing names", BARE_SRUN | {"SLURM_STEP_NODELIST": "login-a,gpu[07-08]"}, place(2, 1, "login-a")),
    Case("an old Slurm", {k: v for k, v in BARE_SRUN.items() if k != "SLURM_STEP_NUM_NODES"}, place(2, 1, "gpu07")),
    Case("pyxis, hook off", BARE_SRUN | PYXIS, place(2, 1, "gpu07", **PER_NODE)),
    Case("pyxis, hook on", BARE_SRUN | ENROOT, place(2, 1, "gpu07", **PER_NODE), {"MASTER_ADDR": "Slurm (SLURM_STEP_NODELIST)"}),
    Case(
        "two tasks per node", TWO_TASKS_PER_NODE | ENROOT_TASKS,
        place(2, 1, "gpu07", level="process", processes_per_node=2, world_size=4, scheduler="Slurm"), gpus=2,
    ),
    Case(
        "Indexed Job", INDEXED_JOB | {"NNODES": "4"},
        place(4, 2, "lm-0.lm.default.svc.cluster.local", 29_500, scheduler="Kubernetes", job="lm"),
        {"RANK": "Kubernetes (JOB_COMPLETION_INDEX)"}, fqdn="lm-2.lm.default.svc.cluster.local",
    ),
    Case(
        "JobSet", INDEXED_JOB | {"WORLD_SIZE": "3"}, place(3, 2, "set-workers-0-0.set.ml.svc.cluster.local"),
        fqdn="set-workers-0-2.set.ml.svc.cluster.local",
    ),
    Case("Volcano, svc and env plugins", VOLCANO, place(3, 2, "lm-worker-0.lm", 29_500, scheduler="Volcano")),
    Case("Volcano, pytorch plugin", VOLCANO_PYTORCH, place(3, 2, "lm-master-0.lm", 23_456)),
    Case("Open MPI, one per node", OPEN_MPI, place(2, 1, "n0", scheduler="Open MPI", **PER_NODE)),
    Case("Open MPI, four per node", OPEN_MPI_TASKS, place(2, 1, "n0", level="process", processes_per_node=4, world_size=8)),
    Case("SkyPilot", SKYPILOT, place(2, 1, "10.0.0.4", processes_per_node=8, scheduler="SkyPilot"), gpus=8),
    Case("SkyPilot on CPUs", SKYPILOT | {"SKYPILOT_NUM_GPUS_PER_NODE": "0"}, place(2, 1, "10.0.0.4", **PER_NODE)),
    Case("MPICH", MPICH, place(2, 1, "n0", level="process", processes_per_node=2, world_size=4, scheduler="MPICH")),
    Case("MPICH, one node", MPICH_ONE_NODE, place(1, 0, "127.0.0.1", 29_500, level="process", world_size=2)),
    Case("MPICH, one per node", MPICH | {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"}, place(2, 1, "n0", **PER_NODE)),
    Case("PALS", {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2", "MASTER_ADDR": "n0"}, place(2, 1, "n0", level="process", world_size=4)),
    Case("srun --mpi=pmi2", BARE_SRUN | PMI2, place(2, 1, "gpu07", scheduler="Slurm", job="7", **PER_NODE)),
    Case("srun, with PMI_SIZE=1 left of an earlier start", BARE_SRUN | {"PMI_RANK": "0", "PMI_SIZE": "1"}, place(2, 1, "gpu07", scheduler="Slurm", **PER_NODE)),
    Case("srun, with an mpirun -n 1 left of an earlier start", BARE_SRUN | LONE_MPIRUN, place(2, 1, "gpu07", scheduler="Slurm", **PER_NODE)),
    Case("mpiexec in a step of Slurm", BARE_SRUN | MPICH | {"MASTER_ADDR": ""}, place(2, 1, "gpu07", scheduler="MPICH", level="process")),
    Case("mpirun in Slurm", OPEN_MPI_IN_SLURM, place(3, 2, "gpu06", 29_500, scheduler="Open MPI", **PER_NODE)),
    Case("mpirun in Slurm, its own node", OPEN_MPI_ON_NODE_0, place(3, 0, "gpu06", 29_500, scheduler="Open MPI", **PER_NODE)),
    Case("jsrun", JSRUN, place(2, 1, "n0", level="process", processes_per_node=2, world_size=4, job="41")),
    Case("LSF", LSF, place(2, 1, "n0", 29_500, scheduler="LSF", job="41", **PER_NODE)),
    Case("AWS Batch", AWS_BATCH, place(3, 1, "10.0.0.9", 29_500, scheduler="AWS Batch", job="5e1f0a2b-11", restarts=0, **PER_NODE)),
    Case("AWS Batch, main node", AWS_BATCH_MAIN, place(3, 0, "host", 29_500, job="5e1f0a2b-11", restarts=1, **PER_NODE)),
    Case("LeaderWorkerSet", LEADER_WORKER_SET, place(4, 3, "lm-0.lm.default", 29_500, scheduler="LeaderWorkerSet", **PER_NODE)),
    Case("SageMaker", SAGEMAKER, place(2, 1, "algo-1", 29_500, processes_per_node=8, job="lm-2026-11-21"), gpus=8),
    Case("Azure ML", AZURE_ML, place(2, 1, "10.0.0.4", 6105, scheduler="Azure ML", job="lm_41", **PER_NODE)),
    Case("Azure ML, processes", AZURE_ML_PROCESSES, place(2, 1, "10.0.0.4", 6105, level="process", world_size=4)),
    Case("Azure ML, MPI", AZURE_ML_MPI, place(2, 1, "10.0.0.4", 29_500, **PER_NODE)),
    Case("Vertex AI", VERTEX_AI, place(3, 2, "train-workerpool0-7", 29_500, scheduler="Vertex AI", job="7", **PER_NODE)),
    Case("dstack", DSTACK, place(2, 1, "10.0.0.4", 29_500, scheduler="dstack", job="lm", processes_per_node=8), gpus=8),
    Case("an instant cluster", INSTANT_CLUSTER, place(2, 1, "10.65.0.2", 29_400, processes_per_node=8), gpus=8),
    Case("Ray Train", RAY, place(2, 1, "10.0.0.4", 45_123, level="process", processes_per_node=2, world_size=4)),
    Case("LOCAL_RANK", PER_PROCESS, place(2, 1, "n0", 29_500, level="process", processes_per_node=2, world_size=4)),
)  # fmt: skip
