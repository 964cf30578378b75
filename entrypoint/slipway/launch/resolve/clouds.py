"""The tables of schedulers that clouds run, and of what they put beside a job on Kubernetes. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from slipway.launch.resolve.scheduler import Claims, Scheduler
from slipway.launch.resolve.sources import Claim
from slipway.protocol.errors import LaunchError

DECIDE = "Set NNODES, NODE_RANK and MASTER_ADDR, or add --standalone for a single node."


def _derive_aws_batch(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    # The main node need not be the one with index 0; only the others are told its address.
    index, main = (environ.get(f"AWS_BATCH_JOB_{name}", "") for name in ("NODE_INDEX", "MAIN_NODE_INDEX"))
    if index.isdecimal() and main.isdecimal():
        rank = 0 if index == main else int(index) + (int(index) < int(main))
        claims["RANK"] = Claim(str(rank), "AWS Batch (AWS_BATCH_JOB_NODE_INDEX, the main node first)")
        if rank == 0:
            claims["MASTER_ADDR"] = Claim(fqdn, "AWS Batch (this is the main node)")
    if job := claims.get("JOB"):  # of a node it is JOB#INDEX
        claims["JOB"] = job._replace(value=job.value.partition("#")[0])
    if (attempt := environ.get("AWS_BATCH_JOB_ATTEMPT", "")).isdecimal() and int(attempt):
        claims["RESTARTS"] = Claim(str(int(attempt) - 1), "AWS Batch (AWS_BATCH_JOB_ATTEMPT - 1)")


def _derive_sagemaker(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    hosts = _read_json(environ, "SM_HOSTS")
    if not isinstance(hosts, list) or environ["SM_CURRENT_HOST"] not in hosts:
        raise LaunchError(
            f"SM_CURRENT_HOST={environ['SM_CURRENT_HOST']} is not among SM_HOSTS={environ['SM_HOSTS']}. {DECIDE}"
        )
    claims |= {
        "WORLD_SIZE": Claim(str(len(hosts)), "SageMaker (SM_HOSTS)"),
        "RANK": Claim(str(hosts.index(environ["SM_CURRENT_HOST"])), "SageMaker (SM_CURRENT_HOST in SM_HOSTS)"),
        "MASTER_ADDR": Claim(str(hosts[0]), "SageMaker (SM_HOSTS)"),
    }


def _derive_azure_ml(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    """Of type PyTorch it sets torch's own variables, in processes; of type MPI it starts an mpirun, which says the rest."""
    if master := environ.get("AZ_BATCH_MASTER_NODE"):
        claims["MASTER_ADDR"] = Claim(master.rpartition(":")[0] or master, "Azure ML (AZ_BATCH_MASTER_NODE)")
    names = {"PROCESSES": "WORLD_SIZE", "PROCESS_RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK"}
    nodes, processes = environ.get("AZUREML_NODE_COUNT", ""), environ.get("WORLD_SIZE", "")
    if environ.get("OMPI_COMM_WORLD_SIZE") or not (
        environ.get("LOCAL_RANK") and nodes.isdecimal() and processes.isdecimal()
    ):
        for name in ("WORLD_SIZE", "RANK"):
            claims.pop(name, None)
        return
    if int(processes) == int(nodes):
        claims["PER_NODE"] = Claim("1", "Azure ML (WORLD_SIZE = AZUREML_NODE_COUNT)")
        return
    claims |= {ours: Claim(environ.get(theirs, ""), f"Azure ML ({theirs})") for ours, theirs in names.items()}
    each = int(processes) // max(int(nodes), 1)
    claims["LOCAL_PROCESSES"] = Claim(str(each), "Azure ML (WORLD_SIZE / AZUREML_NODE_COUNT)")


def _derive_vertex_ai(environ: Mapping[str, str], fqdn: str, claims: Claims) -> None:
    # https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
    spec = _read_json(environ, "CLUSTER_SPEC")
    try:
        pools, task = dict(spec["cluster"]), spec["task"]
        hosts = [str(host) for pool in sorted(pools) for host in pools[pool]]
        before = sum(len(pools[pool]) for pool in sorted(pools) if pool < task["type"])
        rank, address = before + int(task["index"]), hosts[0].rpartition(":")[0] or hosts[0]
    except (KeyError, TypeError, ValueError, IndexError):
        raise LaunchError(
            f"CLUSTER_SPEC={environ['CLUSTER_SPEC']} has no cluster and task as Vertex AI writes them. {DECIDE}"
        ) from None
    claims |= {
        "WORLD_SIZE": Claim(str(len(hosts)), "Vertex AI (CLUSTER_SPEC)"),
        "RANK": Claim(str(rank), "Vertex AI (CLUSTER_SPEC)"),
        "MASTER_ADDR": Claim(address, "Vertex AI (CLUSTER_SPEC)"),
    }


def _read_json(environ: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(environ[name])
    except ValueError:
        raise LaunchError(f"{name}={environ[name]} is no JSON. {DECIDE}") from None


# Multi-node parallel jobs: https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
AWS_BATCH = Scheduler(
    "AWS Batch",
    ("AWS_BATCH_JOB_NUM_NODES",),
    {
        "WORLD_SIZE": ("AWS_BATCH_JOB_NUM_NODES",),
        "MASTER_ADDR": ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",),
        "JOB": ("AWS_BATCH_JOB_ID",),
    },
    _derive_aws_batch,
    strict=True,
)
# https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/
LEADER_WORKER_SET = Scheduler(
    "LeaderWorkerSet",
    ("LWS_GROUP_SIZE",),
    {"WORLD_SIZE": ("LWS_GROUP_SIZE",), "RANK": ("LWS_WORKER_INDEX",), "MASTER_ADDR": ("LWS_LEADER_ADDRESS",)},
    strict=True,
)
# https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
SAGEMAKER = Scheduler(
    "SageMaker",
    ("SM_HOSTS",),
    {"JOB": ("TRAINING_JOB_NAME",)},
    _derive_sagemaker,
    strict=True,
    needs=("SM_CURRENT_HOST",),
)
# https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu
AZURE_ML = Scheduler(
    "Azure ML",
    ("AZUREML_NODE_COUNT", "AZ_BATCH_MASTER_NODE"),
    {"WORLD_SIZE": ("AZUREML_NODE_COUNT",), "RANK": ("NODE_RANK",), "JOB": ("AZUREML_RUN_ID",)},
    _derive_azure_ml,
    before_plain=True,  # its WORLD_SIZE counts processes
)
VERTEX_AI = Scheduler("Vertex AI", ("CLUSTER_SPEC",), {"JOB": ("CLOUD_ML_JOB_ID",)}, _derive_vertex_ai)
# https://dstack.ai/docs/concepts/tasks#distributed-tasks
DSTACK = Scheduler(
    "dstack",
    ("DSTACK_NODES_NUM",),
    {
        "WORLD_SIZE": ("DSTACK_NODES_NUM",),
        "RANK": ("DSTACK_NODE_RANK",),
        "MASTER_ADDR": ("DSTACK_MASTER_NODE_IP",),
        "JOB": ("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
    },
    strict=True,
)
# Instant clusters set WORLD_SIZE in processes: https://docs.runpod.io/instant-clusters/configuration
INSTANT_CLUSTER = Scheduler(
    "an instant cluster",
    ("NUM_NODES",),
    {
        "WORLD_SIZE": ("NUM_NODES",),
        "RANK": ("NODE_RANK",),
        "NPROC_PER_NODE": ("NUM_TRAINERS",),
        "MASTER_ADDR": ("PRIMARY_ADDR",),
        "MASTER_PORT": ("PRIMARY_PORT",),
    },
    needs=("NODE_RANK",),
    before_plain=True,
)
