"""The Kubernetes manifests that `slipway render k8s` prints: those of k8s/, with what was asked for. Pure.

The files of k8s/base and k8s/components are read as kustomize reads them, so both say the same.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipway.protocol.errors import LaunchError
from slipway.render.request import MARGIN, JobRequest, read_time, without_variables

Document = dict[str, Any]
Read = Callable[[str], list[Document]]  # a file's path below k8s/ -> its documents

NAME = "slipway"  # what everything is called in the files
BESIDE = "-tensorboard"  # behind the job's name: what stands beside it
INSTANCE = "app.kubernetes.io/instance"
QUEUE = "kueue.x-k8s.io/queue-name"
# With both, Kueue may admit a Job with fewer pods, and gives an Indexed Job as many completions.
PARTIAL, EQUAL = "kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/job-completions-equal-parallelism"
TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
GPU = "nvidia.com/gpu"
NAME_LENGTH = 63  # characters of a label, so of a host name (RFC 1123)
CPUS_PER_GPU, MEM_PER_GPU = 4, "16Gi"
# Of k8s/components; cpu and kueue follow from other options.
COMPONENTS = ("gpu", "rdma", "pvc", "metrics", "tensorboard")
_LISTS = ("mountPath", "name")  # what tells the items of such lists apart, as Kubernetes merges them


@dataclass(frozen=True, kw_only=True)
class ManifestRequest(JobRequest):
    """The same of manifests. `secrets` come from the Secret `secret`; `time` bounds the job's whole life."""

    name: str = NAME
    nodes: int = 1
    cpus_per_gpu: int = CPUS_PER_GPU
    mem_per_gpu: str = MEM_PER_GPU  # a quantity
    queue: str | None = None
    topology: str | None = None  # the level of Kueue's Topology in which the pods had better be
    components: tuple[str, ...] = ()

    @property
    def launchers(self) -> int:
        """How many pods there are, spare ones among them."""
        return self.nodes + self.spares

    @property
    def dispensable(self) -> int:
        """Without how many of its pods the job continues."""
        return self.spares or self.nodes - (self.least or self.nodes)

    @property
    def secret(self) -> str:
        """The name of the Secret that holds the values of `secrets`."""
        return f"{self.name}-settings"


def make_manifests(asked: ManifestRequest, read: Read) -> list[Document]:
    """Return the documents: the Job first. Raises LaunchError for a name that cannot be, and for no time."""
    require_name(asked.name, BESIDE if "tensorboard" in asked.components else f"-{asked.launchers - 1}")
    (job,) = read("base/single/job.yaml")
    others = read("base/single/networkpolicy.yaml")
    if asked.nodes > 1:
        (patch,) = read("base/multi/nodes.yaml")
        job, others = merged(job, patch), [*read("base/multi/service.yaml"), *others]
    chosen = [*(["cpu"] if asked.gpus == 0 else []), *(["kueue"] if asked.queue else []), *asked.components]
    for component in chosen:
        (kustomization,) = read(f"components/{component}/kustomization.yaml")
        for entry in kustomization.get("patches", ()):
            (patch,) = read(f"components/{component}/{entry['path']}")
            job, *others = (merged(one, patch) if one["kind"] == patch["kind"] else one for one in (job, *others))
        for path in kustomization.get("resources", ()):
            others += read(f"components/{component}/{path}")
    spec = job["spec"]
    spec |= {"completions": asked.launchers, "parallelism": asked.launchers}
    if asked.dispensable:
        spec["maxFailedIndexes"] = asked.dispensable
    if asked.time:
        spec["activeDeadlineSeconds"] = read_time(asked.time)
        if not spec["activeDeadlineSeconds"]:
            raise LaunchError(
                f"--time {asked.time} leaves no time to train. Type a longer one, or leave it out for any time."
            )
    if asked.queue:
        job["metadata"]["labels"][QUEUE] = asked.queue
        if asked.least and asked.least < asked.nodes:
            job["metadata"] |= {"annotations": {PARTIAL: str(asked.least), EQUAL: "true"}}
        if asked.topology:
            spec["template"]["metadata"].setdefault("annotations", {})[TOPOLOGY] = asked.topology
    _fill(spec["template"]["spec"], asked)
    for document in others:
        if asked.image and document["kind"] == "Deployment":
            document["spec"]["template"]["spec"]["containers"][0]["image"] = asked.image
    return [_named(document, asked.name) for document in (job, *others)]


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge: mappings by key, lists of named items by name, anything else replaces.

    None deletes from a mapping, `$patch: delete` from a list.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base.get(key), patch[key]) if key in patch else base[key] for key in {**base, **patch}}
        return {key: value for key, value in both.items() if value is not None}
    if isinstance(base, list) and isinstance(patch, list):
        key = next(
            (key for key in _LISTS if all(isinstance(item, dict) and key in item for item in (*base, *patch))), ""
        )
        if key:
            news = {item[key]: item for item in patch}
            olds = [merged(item, news.pop(item[key], {})) for item in base]
            return [item for item in (*olds, *news.values()) if item.get("$patch") != "delete"]
    return patch


def require_name(name: str, suffix: str) -> None:
    """Raise LaunchError where a job cannot be called so; `suffix` follows in the longest name that is made of it."""
    longest = NAME_LENGTH - len(suffix)
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > longest:
        raise LaunchError(
            f"--name {name}: small letters, digits and hyphens are allowed, a letter first, at most {longest} characters, as "
            f"host names are made of it (…{suffix})."
        )


def arguments_and_environment(asked: ManifestRequest) -> tuple[list[str], list[Document]]:
    """What the container is told: its `args` behind `run`, and the entries of `env` that were asked for."""
    plain = [{"name": name, "value": without_variables(value)} for name, value in asked.env.items()]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": asked.secret, "key": name}}} for name in asked.secrets
    ]
    return [without_variables(word) for word in asked.words], [*plain, *secret]


def _fill(pod: Document, asked: ManifestRequest) -> None:
    """Write what was asked for into the pod's template."""
    pod["terminationGracePeriodSeconds"] = asked.grace + MARGIN
    (container,) = pod["containers"]
    if asked.image:
        container["image"] = asked.image
    words, env = arguments_and_environment(asked)
    container["args"] = [*container["args"], *words]
    container["env"] = merged(container["env"], [{"name": "NNODES", "value": size_of(asked)}, *env])
    if asked.gpus:
        resources = container["resources"]
        resources["limits"] |= {GPU: asked.gpus}
        size, unit = re.fullmatch(r"(\d+)(\D*)", asked.mem_per_gpu).groups()  # type: ignore[union-attr]  # checked before
        memory = f"{int(size) * asked.gpus}{unit}"
        resources["requests"] |= {GPU: asked.gpus, "cpu": asked.cpus_per_gpu * asked.gpus, "memory": memory}


def size_of(asked: ManifestRequest) -> str:
    """The number of nodes, as the launcher reads it."""
    if asked.least and asked.least < asked.nodes:
        return f"{asked.least}:{asked.nodes}"
    return f"{asked.nodes}+{asked.spares}" if asked.spares else str(asked.nodes)


def _named(value: Any, name: str) -> Any:
    """Put the job's name where the files say NAME: in names of objects, of the Service, and in labels."""
    if isinstance(value, list):
        return [_named(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {key: _named(item, name) for key, item in value.items()}
    for key in (INSTANCE, "subdomain"):
        if key in renamed:
            renamed[key] = name + renamed[key].removeprefix(NAME)
    if "kind" in value:
        renamed["metadata"]["name"] = name + value["metadata"]["name"].removeprefix(NAME)
    return renamed
