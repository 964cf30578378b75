"""Kubelet's part: from a pod, as the Job controller makes it, to what one types behind `docker run`."""

import os
import re

from containers import IMAGE, docker
from kubectl import Document
from templates import of_kind
from volumes import amount

CPUS = (os.cpu_count() or 1) / 2  # this machine stands for two nodes, and processes that wait for a turn are slow
NAMESPACE = "default"
DOMAIN = "svc.cluster.local"
REFERENCES = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
# Kubelet tells every container of the cluster's own Service, even with enableServiceLinks: false.
SERVICE = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
}


def docker_words(pod: Document, documents: list[Document], mounts: list[str]) -> list[str]:
    """The words behind `docker run` for the one container of a pod; `documents`: what else is in the namespace."""
    spec = pod["spec"]
    [container] = spec["containers"]
    assert spec["restartPolicy"] in ("Never", "OnFailure")
    assert spec["automountServiceAccountToken"] is False, "the rehearsal mounts no token"
    assert spec["enableServiceLinks"] is False, "the rehearsal tells of no other Service"
    assert "$(" not in str(container), "the rehearsal puts no variables into arguments"
    flags = [*names(pod, documents), *security(spec, container), *limits(container), *mounts]
    for name, value in variables(pod, container, documents).items():
        flags += ["--env", f"{name}={value}"]
    if place := container.get("workingDir"):
        flags += ["--workdir", place]
    entry, *rest = container.get("command", [""])
    if entry:
        flags += ["--entrypoint", entry]
    image = "IMG" if container["image"] == "slipway:dev" else container["image"]
    return [*flags, image, *rest, *map(str, container.get("args", []))]


def names(pod: Document, documents: list[Document]) -> list[str]:
    """The pod's names: its own, which /etc/hosts knows, and in the cluster's DNS where a headless Service gives them."""
    host, subdomain = pod["spec"]["hostname"], pod["spec"].get("subdomain")
    flags = ["--hostname", host, "--dns-option", "ndots:5"]
    for domain in (f"{NAMESPACE}.{DOMAIN}", DOMAIN, DOMAIN.partition(".")[2]):
        flags += ["--dns-search", domain]
    if not subdomain:
        return flags
    place = f"{subdomain}.{NAMESPACE}.{DOMAIN}"
    labels = pod["metadata"]["labels"].items()
    serving = [
        each
        for each in of_kind(documents, "Service")
        if each["metadata"]["name"] == subdomain
        and each["spec"]["clusterIP"] == "None"
        and each["spec"].get("publishNotReadyAddresses")
        and each["spec"]["selector"].items() <= labels
    ]
    aliases = ["--network-alias", f"{host}.{place}"] if serving else []
    return [*flags, "--domainname", place, *aliases]


def security(spec: Document, container: Document) -> list[str]:
    """Whom the container runs as, and what it may do."""
    context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    assert context["seccompProfile"]["type"] == "RuntimeDefault", "Docker's default is the only one here"
    user = context.get("runAsUser", docker("image", "inspect", "--format", "{{.Config.User}}", IMAGE).partition(":")[0])
    if context.get("runAsNonRoot"):
        assert re.fullmatch(r"[1-9]\d*", str(user)), f"kubelet cannot tell that user {user!r} is not root"
    flags = []
    if "runAsUser" in context or "runAsGroup" in context:
        group = f":{context['runAsGroup']}" if "runAsGroup" in context else ""
        flags += ["--user", f"{user}{group}"]
    if "fsGroup" in context:
        flags += ["--group-add", str(context["fsGroup"])]
    if context.get("readOnlyRootFilesystem"):
        flags += ["--read-only"]
    if context.get("allowPrivilegeEscalation") is False:
        flags += ["--security-opt", "no-new-privileges"]
    for act, names in context.get("capabilities", {}).items():
        flags += [word for name in names for word in (f"--cap-{act}", name)]
    return flags


def limits(container: Document) -> list[str]:
    """The limits: no more processors than a pod's half of this machine, and no swap."""
    given = container.get("resources", {}).get("limits", {})
    flags = []
    if cpu := given.get("cpu"):
        flags += ["--cpus", str(min(amount(cpu), CPUS))]
    if memory := given.get("memory"):
        flags += ["--memory", str(int(amount(memory))), "--memory-swap", str(int(amount(memory)))]
    return flags


def variables(pod: Document, container: Document, documents: list[Document]) -> dict[str, str]:
    """The container's environment: the cluster's Service, then envFrom, then env."""
    found = dict(SERVICE)
    for source in container.get("envFrom", []):
        kind, reference = (
            ("Secret", source["secretRef"]) if "secretRef" in source else ("ConfigMap", source["configMapRef"])
        )
        for name, value in content(kind, reference, documents).items():
            found[source.get("prefix", "") + name] = value
    for variable in container.get("env", []):
        if (told := value_of(variable, pod, documents)) is not None:
            found[variable["name"]] = told
    return found


def value_of(variable: Document, pod: Document, documents: list[Document]) -> str | None:
    """The value of a variable; None where what it refers to is optional and missing."""
    source = variable.get("valueFrom")
    if source is None:
        return str(variable.get("value", ""))
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    kind, reference = next((kind, source[key]) for key, kind in REFERENCES.items() if key in source)
    found = content(kind, reference, documents)
    assert reference["key"] in found or reference.get("optional"), (
        f"{kind} {reference['name']} has no {reference['key']}"
    )
    return found.get(reference["key"])


def content(kind: str, reference: Document, documents: list[Document]) -> dict[str, str]:
    """What a ConfigMap or a Secret holds; a Secret's as stringData."""
    for each in of_kind(documents, kind):
        if each["metadata"]["name"] == reference["name"]:
            return dict(each.get("data" if kind == "ConfigMap" else "stringData", {}))
    assert reference.get("optional"), f"there is no {kind} {reference['name']}"
    return {}


def field(pod: Document, path: str) -> str:
    """A field of the pod, as the downward API gives it."""
    if quoted := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(pod["metadata"][quoted[1]][quoted[2]])
    assert path in ("metadata.name", "metadata.namespace"), f"the rehearsal does not know the field {path}"
    return str(pod["metadata"][path.rpartition(".")[2]])
