"""Which fields of a manifest the rehearsal honours, and which it cannot, with the reason. Any other field is an error.

A path is that of a leaf; lists do not show in it. `*` stands for anything.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from kubectl import Document

# A template inside another document is the document that is made from it.
MADE_FROM = {
    "Job.spec.template": "Pod",
    "Pod.spec.containers": "Container",
    "JobSet.spec.replicatedJobs.template": "Job",
    "ClusterTrainingRuntime.spec.template": "JobSet",
}
HONOURED = {
    "ConfigMap": "metadata.name data.*",
    "Secret": "metadata.name type stringData.*",
    "Service": "metadata.name spec.clusterIP spec.publishNotReadyAddresses spec.selector.*",
    "Job": "metadata.name spec.backoffLimit spec.backoffLimitPerIndex spec.maxFailedIndexes spec.completionMode "
    "spec.completions spec.parallelism spec.podReplacementPolicy spec.successPolicy.rules.succeededIndexes spec.podFailurePolicy.rules.action "
    "spec.podFailurePolicy.rules.onExitCodes.containerName spec.podFailurePolicy.rules.onExitCodes.operator "
    "spec.podFailurePolicy.rules.onExitCodes.values spec.podFailurePolicy.rules.onPodConditions.status "
    "spec.podFailurePolicy.rules.onPodConditions.type",
    "JobSet": "metadata.name spec.replicatedJobs.name spec.replicatedJobs.replicas "
    "spec.network.enableDNSHostnames spec.network.publishNotReadyAddresses",
    "ClusterTrainingRuntime": "metadata.name spec.mlPolicy.numNodes spec.mlPolicy.torch "
    "spec.mlPolicy.torch.numProcPerNode",
    "TrainJob": "metadata.name spec.runtimeRef.* spec.trainer.numNodes spec.trainer.numProcPerNode "
    "spec.trainer.image spec.trainer.args spec.trainer.env.name spec.trainer.env.value spec.trainer.resourcesPerNode.*",
    "Pod": "metadata.labels.* metadata.annotations.* spec.automountServiceAccountToken spec.enableServiceLinks "
    "spec.restartPolicy spec.subdomain spec.terminationGracePeriodSeconds spec.securityContext.fsGroup "
    "spec.securityContext.runAsGroup spec.securityContext.runAsNonRoot "
    "spec.securityContext.runAsUser spec.securityContext.seccompProfile.type spec.volumes.name "
    "spec.volumes.emptyDir spec.volumes.emptyDir.medium spec.volumes.emptyDir.sizeLimit "
    "spec.volumes.persistentVolumeClaim.claimName",
    "Container": "name image command args workingDir env.name env.value env.valueFrom.fieldRef.fieldPath "
    "env.valueFrom.configMapKeyRef.* env.valueFrom.secretKeyRef.* envFrom.prefix envFrom.configMapRef.* "
    "envFrom.secretRef.* resources.limits.cpu resources.limits.memory securityContext.allowPrivilegeEscalation "
    "securityContext.readOnlyRootFilesystem securityContext.capabilities.drop securityContext.capabilities.add "
    "terminationMessagePolicy volumeMounts.name volumeMounts.mountPath volumeMounts.readOnly",
}
NOT_HONOURED = {
    "NetworkPolicy.*": "the engine has no network policies; a job has a network of its own",
    "Pod.spec.affinity.*": "one machine",
    "Pod.spec.topologySpreadConstraints.*": "one machine",
    "Pod.spec.nodeSelector.*": "one machine",
    "Pod.spec.tolerations.*": "one machine",
    "Container.resources.requests.*": "nothing is scheduled here",
    "Container.resources.limits.nvidia.com/gpu": "no GPUs here: the tests ask for processes on the CPU",
    "Container.resources.limits.rdma/*": "the engine has no such devices",
    "Pod.spec.securityContext.fsGroupChangePolicy": "a new volume's root is all that there is to change",
    "JobSet.spec.failurePolicy.*": "a JobSet's own decisions are not played, only those of its one Job",
    "*.metadata.labels.*": "nobody selects by the labels of anything but pods",
}
KNOWN = [f"{kind}.{entry}" for kind, text in HONOURED.items() for entry in text.split()]


def not_honoured(documents: Iterable[Document]) -> dict[str, str]:
    """The fields that the rehearsal passes over, and why. AssertionError where nobody has thought of a field."""
    found = {}
    for path in sorted({path for each in documents for path in leaves(each, each["kind"])}):
        if not any(fnmatchcase(path, entry) for entry in KNOWN):
            entry = next((entry for entry in NOT_HONOURED if fnmatchcase(path, entry)), None)
            assert entry, f"the rehearsal does not know {path}: honour it, and say so here, or say here why it cannot"
            found[entry] = NOT_HONOURED[entry]
    return found


def leaves(value: Any, path: str) -> Iterator[str]:
    """The paths of all leaves of a document."""
    path = MADE_FROM.get(path, path)
    if isinstance(value, dict) and value:
        for name, each in value.items():
            if "." in path or name not in ("apiVersion", "kind"):
                yield from leaves(each, f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path
