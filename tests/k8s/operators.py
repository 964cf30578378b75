"""What the operators make of their documents: the Job of a JobSet, and the JobSet of a TrainJob with its runtime."""

import copy

from kubectl import Document
from templates import of_kind


def expanded(documents: list[Document]) -> list[Document]:
    """The documents with the Job and the Service that the operators would add."""
    sets = [*of_kind(documents, "JobSet"), *(trained(job, documents) for job in of_kind(documents, "TrainJob"))]
    return [*documents, *(made for each in sets for made in (*jobs(each), service(each)))]


def jobs(jobset: Document) -> list[Document]:
    """The Jobs of a JobSet: https://jobset.sigs.k8s.io/docs/concepts/"""
    name, made = jobset["metadata"]["name"], []
    for replicated in jobset["spec"]["replicatedJobs"]:
        for number in range(replicated.get("replicas", 1)):
            job = copy.deepcopy(replicated["template"])
            job |= {"kind": "Job", "metadata": {"name": f"{name}-{replicated['name']}-{number}"}}
            job["spec"].setdefault("completionMode", "Indexed")
            template = job["spec"]["template"]
            template["spec"].setdefault("subdomain", name)
            labels = template.setdefault("metadata", {}).setdefault("labels", {})
            labels["jobset.sigs.k8s.io/jobset-name"] = name
            made.append(job)
    return made


def service(jobset: Document) -> Document:
    """The headless Service of a JobSet."""
    name, network = jobset["metadata"]["name"], jobset["spec"].get("network", {})
    assert network.get("enableDNSHostnames", True)
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
        "selector": {"jobset.sigs.k8s.io/jobset-name": name},
    }
    return {"kind": "Service", "metadata": {"name": name}, "spec": spec}


def trained(train_job: Document, documents: list[Document]) -> Document:
    """The JobSet that Kubeflow Trainer makes (pkg/runtime/framework/plugins/torch): PET_* for the container `node`."""
    name, trainer = train_job["metadata"]["name"], train_job["spec"].get("trainer", {})
    wanted = train_job["spec"]["runtimeRef"]["name"]
    [runtime] = [each for each in of_kind(documents, "ClusterTrainingRuntime") if each["metadata"]["name"] == wanted]
    policy = runtime["spec"]["mlPolicy"]
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    jobset: Document = copy.deepcopy(runtime["spec"]["template"])
    jobset |= {"kind": "JobSet", "metadata": {"name": name}}
    [replicated] = [each for each in jobset["spec"]["replicatedJobs"] if each["name"] == "node"]
    spec = replicated["template"]["spec"]
    spec |= {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed"}
    [container] = [each for each in spec["template"]["spec"]["containers"] if each["name"] == "node"]
    container |= {key: trainer[key] for key in ("image", "args") if key in trainer}
    container["resources"] = trainer.get("resourcesPerNode", container.get("resources", {}))
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container["env"] = [
        *container.get("env", []),
        *trainer.get("env", []),
        {"name": "PET_NNODES", "value": str(nodes)},
        {
            "name": "PET_NPROC_PER_NODE",
            "value": str(trainer.get("numProcPerNode", policy["torch"].get("numProcPerNode", "auto"))),
        },
        {"name": "PET_NODE_RANK", "valueFrom": rank},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": "29400"},
    ]
    return jobset
