"""Every pod template in manifests, and what stands around it: of Jobs, Deployments, JobSets and Trainer's runtimes."""

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

TRAINING, TENSORBOARD, DOWNLOAD = "training", "tensorboard", "download"
COMPONENT = "app.kubernetes.io/component"
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
# Kinds without pods that may stand in our manifests. What else there is no rule looks at, so it is none of ours.
PODLESS = ("ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "Secret", "Service", "TrainJob")


@dataclass(frozen=True)
class Pods:
    """A template for pods. `job` is the spec of the Job around it, None for others; `hosts` is what all host names begin with."""

    kind: str
    owner: str
    hosts: str
    template: Document
    job: Document | None = None
    namespace: str | None = None
    injected: tuple[tuple[str, str], ...] = ()  # labels that a controller adds

    @property
    def where(self) -> str:
        return f"{self.kind} {self.owner}"

    @property
    def spec(self) -> Document:
        return dict(self.template.get("spec") or {})

    @property
    def labels(self) -> dict[str, str]:
        return {**(self.template.get("metadata") or {}).get("labels", {}), **dict(self.injected)}

    @property
    def role(self) -> str:
        """What they are for; pods without a label are held to the most that is asked of any."""
        return self.labels.get(COMPONENT, TRAINING)

    @property
    def operated(self) -> bool:
        """Whether an operator makes the Job, and names its pods."""
        return self.kind in ("JobSet", "TrainJob", *RUNTIMES)

    @property
    def nodes(self) -> int:
        return int((self.job or {}).get("completions", 1))

    @property
    def containers(self) -> list[Document]:
        """All of them, those that only prepare included."""
        return [*self.spec.get("initContainers", ()), *self.spec.get("containers", ())]

    @property
    def main(self) -> Document:
        """The container that the pods are for, which is the first."""
        return dict((self.spec.get("containers") or [{}])[0])

    @property
    def env(self) -> dict[str, str | None]:
        """The main container's variables; None for what is read from elsewhere."""
        return {entry["name"]: entry.get("value") for entry in self.main.get("env", ())}


def name_of(document: Document) -> str:
    return str((document.get("metadata") or {}).get("name"))


def namespace_of(document: Document) -> str | None:
    return (document.get("metadata") or {}).get("namespace")


def of_kind(documents: Sequence[Document], *kinds: str) -> list[Document]:
    return [document for document in documents if document.get("kind") in kinds]


def selects(selector: Document | None, labels: dict[str, str]) -> bool:
    """Whether a non-empty selector of labels matches; expressions are not used here, and match nothing."""
    wanted = (selector or {}).get("matchLabels") or {}
    return bool(wanted) and set(selector or {}) == {"matchLabels"} and wanted.items() <= labels.items()


def read_pods(documents: Sequence[Document]) -> list[Pods]:
    """The templates of all documents. What a TrainJob says is filled into its runtime, as Trainer does."""
    found: list[Pods] = []
    for document in documents:
        kind, name, spec = document.get("kind", ""), name_of(document), document.get("spec") or {}
        make = functools.partial(Pods, kind, name, namespace=namespace_of(document))
        if kind == "Job":
            label = ("batch.kubernetes.io/job-name", name)
            found.append(make(name, spec.get("template") or {}, job=spec, injected=(label,)))
        elif kind == "Deployment":
            found.append(make(name, spec.get("template") or {}))
        elif kind == "JobSet":
            found += [make(hosts, job["template"], job=job, injected=label) for hosts, job, label in _jobs(name, spec)]
        elif kind in RUNTIMES and not _trained(documents, name):
            jobs = _jobs(name, spec["template"]["spec"])
            found += [make(hosts, job["template"], job=job, injected=label) for hosts, job, label in jobs]
        elif kind == "TrainJob":
            runtime = next((one for one in of_kind(documents, *RUNTIMES) if name_of(one) == _runtime(document)), None)
            jobs = _jobs(name, _filled(runtime, document)) if runtime else iter(())
            found += [make(hosts, job["template"], job=job, injected=label) for hosts, job, label in jobs]
    return found


def _jobs(name: str, spec: Document) -> Iterator[tuple[str, Document, tuple[tuple[str, str], ...]]]:
    """The Jobs of a JobSet with what their pods' host names begin with, and the label that JobSet adds."""
    for row in spec.get("replicatedJobs", ()):
        hosts = f"{name}-{row['name']}-{row.get('replicas', 1) - 1}"
        yield hosts, row["template"]["spec"], (("jobset.sigs.k8s.io/jobset-name", name),)


def _runtime(document: Document) -> str:
    return str(document["spec"]["runtimeRef"]["name"])


def _trained(documents: Sequence[Document], runtime: str) -> bool:
    return any(_runtime(document) == runtime for document in of_kind(documents, "TrainJob"))


def _filled(runtime: Document, document: Document) -> Document:
    """The JobSet that Trainer makes of a runtime and a TrainJob: https://www.kubeflow.org/docs/components/trainer."""
    jobset: Document = copy.deepcopy(runtime["spec"]["template"]["spec"])
    trainer = document["spec"].get("trainer") or {}
    nodes = trainer.get("numNodes", runtime["spec"].get("mlPolicy", {}).get("numNodes", 1))
    for row in jobset["replicatedJobs"]:
        job = row["template"]["spec"]
        job |= {"completions": nodes, "parallelism": nodes}
        for container in job["template"]["spec"]["containers"]:
            if container["name"] == "node":
                container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
                if "resourcesPerNode" in trainer:
                    container["resources"] = trainer["resourcesPerNode"]
                news = {entry["name"]: entry for entry in trainer.get("env", ())}
                olds = [news.pop(entry["name"], entry) for entry in container.get("env", ())]
                container["env"] = [*olds, *news.values()]
    return jobset
