"""The manifests for operators: `slipway render jobset` and `slipway render trainer`, made of those for a plain Job. Pure.

Field names: jobset.x-k8s.io/v1alpha2 (JobSet's jobset_types.go), trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 2.0 to 2.3).
"""

import dataclasses
from typing import Any

from slipway.render import manifests

NODE = "node"  # what Trainer wants the replicated job and the container to be called
SET_LABEL = "jobset.sigs.k8s.io/jobset-name"  # JobSet gives it to each of its pods
CPU_PROCESSES = 2  # what the launcher takes by itself where there is no GPU; Trainer would count cores
TRAINER = "trainer.kubeflow.org"


def make_jobset(asked: manifests.ManifestRequest, read: manifests.Read) -> list[manifests.Document]:
    """Return the JobSet first, then what stands beside it. Raises LaunchError for a name that cannot be."""
    job, others = _parts(asked, read)
    # The Job within replaces single pods, and does not count disruptions. When its retries are used up, all pods begin
    # anew; what cannot succeed ends the set. (A rule's name may hold no hyphen.)
    reasons = ["PodFailurePolicy", "DeadlineExceeded"]
    hopeless = {"name": "cannotSucceed", "action": "FailJobSet", "onJobFailureReasons": reasons}
    spec = {
        "failurePolicy": {"maxRestarts": 3, "restartStrategy": "BlockingRecreate", "rules": [hopeless]},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job["spec"]}}],
    }
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", job["metadata"], spec), *others]


def make_trainer(asked: manifests.ManifestRequest, read: manifests.Read) -> list[manifests.Document]:
    """A ClusterTrainingRuntime, a TrainJob that says what to train with it, and what goes with them. Raises LaunchError."""
    generic, others = _parts(dataclasses.replace(asked, words=(), env={}, secrets=()), read)
    spec = generic["spec"]
    for rule in spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = NODE
    (container,) = spec["template"]["spec"]["containers"]
    container["name"] = NODE
    processes = asked.env.get("NPROC_PER_NODE", "")
    # PET_NNODES and numProcPerNode say it. Their number asks for no GPUs, but nccl does, which shares none between processes.
    container["env"] = [entry for entry in container["env"] if entry["name"] not in ("NNODES", "NPROC_PER_NODE")]
    if asked.gpus != 0 and processes != "cpu" and "SLIPWAY_OVERSUBSCRIBE" not in asked.env:
        container["env"].append({"name": "SLIPWAY_BACKEND", "value": "nccl"})
    if asked.spares:  # of the nodes that Trainer counts
        container["env"].append({"name": "SLIPWAY_SPARES", "value": str(asked.spares)})
    template = {"metadata": {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}}, "spec": spec}
    limit = container["resources"]["limits"].get(manifests.GPU, CPU_PROCESSES)
    words, env = manifests.arguments_and_environment(asked)
    if processes == "auto" or processes.isdigit():
        env = [entry for entry in env if entry["name"] != "NPROC_PER_NODE"]  # numProcPerNode says it
    runtime = {
        "mlPolicy": {"numNodes": asked.launchers, "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": NODE, "template": template}]}},
    }
    trainer = {
        "numNodes": asked.launchers,
        "numProcPerNode": int(processes) if processes.isdigit() else limit,
        "image": container["image"],
        "args": [*container["args"], *words],
        "resourcesPerNode": container["resources"],
        **({"env": env} if env else {}),
    }
    labels = {name: value for name, value in generic["metadata"]["labels"].items() if name != manifests.QUEUE}
    shared = {"name": asked.name, "labels": {**labels, f"{TRAINER}/framework": "torch"}}
    use = {"apiGroup": TRAINER, "kind": "ClusterTrainingRuntime", "name": asked.name}
    version = f"{TRAINER}/v1alpha1"
    return [
        _object(version, "ClusterTrainingRuntime", shared, runtime),
        _object(version, "TrainJob", generic["metadata"], {"runtimeRef": use, "trainer": trainer}),
        *others,
    ]


def _parts(
    asked: manifests.ManifestRequest, read: manifests.Read
) -> tuple[manifests.Document, list[manifests.Document]]:
    """The Job that stands inside, and what stands beside it. JobSet makes the Service and names the pods itself."""
    manifests.require_name(asked.name, f"-{NODE}-0-{asked.launchers - 1}-abcde")
    job, *others = manifests.make_manifests(asked, read)
    job["spec"]["template"]["spec"].pop("subdomain", None)
    kept = [one for one in others if (one["kind"], one["metadata"]["name"]) != ("Service", asked.name)]
    return job, [_of_set(one, asked.name) if one["metadata"]["name"] == asked.name else one for one in kept]


def _of_set(value: Any, name: str) -> Any:
    """A copy of a manifest, or of a part of it, whose selectors select the pods of the set `name`."""
    if isinstance(value, list):
        return [_of_set(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {SET_LABEL: name} if key == "matchLabels" and manifests.INSTANCE in item else _of_set(item, name)
        for key, item in value.items()
    }


def _object(version: str, kind: str, metadata: manifests.Document, spec: manifests.Document) -> manifests.Document:
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
