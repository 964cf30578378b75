"""Names and the network: who is called how, who finds whom, who may talk to whom."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from templates import DOWNLOAD, TENSORBOARD, TRAINING, Document, Pods, name_of, namespace_of, of_kind, selects

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")  # RFC 1123
SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # RFC 1035
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")  # of a label
LONGEST = 63
ROLES = (TRAINING, TENSORBOARD, DOWNLOAD)
DNS = {(53, "TCP"), (53, "UDP")}


def names_fit(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    hosts = [f"{one.hosts}-{one.nodes - 1}" for one in pods if one.job]
    services = [name_of(one) for one in of_kind(documents, "Service")]
    for name, form in chain(((host, LABEL) for host in hosts), ((service, SERVICE) for service in services)):
        if len(name) > LONGEST or not form.fullmatch(name):
            yield f"{name!r} cannot be a host's or a Service's name ({len(name)} characters)"
    labels = [(one.get("metadata") or {}).get("labels") or {} for one in documents]
    for key, value in chain.from_iterable(each.items() for each in [*labels, *(one.labels for one in pods)]):
        if len(value) > LONGEST or not VALUE.fullmatch(value):
            yield f"{value!r} cannot be the value of label {key}"
    seen = [(one.get("kind"), namespace_of(one), name_of(one)) for one in documents]
    yield from (f"{kind} {name} stands there twice" for kind, _, name in {one for one in seen if seen.count(one) > 1})


def pods_are_labelled(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """As Kubernetes recommends; what a template's pods are for decides which rules they are held to."""
    for one in pods:
        labels = {name: one.labels.get(f"app.kubernetes.io/{name}") for name in ("name", "instance", "component")}
        if labels != {"name": "slipway", "instance": one.owner, "component": one.role} or one.role not in ROLES:
            yield f"{one.where}: its pods' labels are {labels}"
    for document in of_kind(documents, "Deployment"):
        spec = document["spec"]
        if not selects(spec.get("selector"), spec["template"]["metadata"].get("labels", {})):
            yield f"Deployment {name_of(document)} selects other pods than its own"


def nodes_find_each_other(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """Several pods have names in the DNS: of a headless Service that has their subdomain's name, or of JobSet's."""
    for document in of_kind(documents, "JobSet"):
        network = document["spec"].get("network") or {}
        if False in (network.get("enableDNSHostnames"), network.get("publishNotReadyAddresses")):
            yield f"JobSet {name_of(document)}: its pods have no names before they are ready"
    for one in pods:
        subdomain = one.spec.get("subdomain")
        if one.operated and subdomain:
            yield f"{one.where}: the subdomain is JobSet's to set"
        if one.operated or not (subdomain or one.nodes > 1):
            continue
        services = [service for service in of_kind(documents, "Service") if name_of(service) == subdomain]
        same = [service for service in services if namespace_of(service) == one.namespace]
        if not same:
            yield f"{one.where}: there is no Service for subdomain {subdomain!r} in its namespace"
        for spec in (service["spec"] for service in same):
            if spec.get("clusterIP") != "None" or spec.get("publishNotReadyAddresses") is not True:
                yield f"{one.where}: Service {subdomain} must be headless and publish addresses of pods that are not ready"
            if not selects({"matchLabels": spec.get("selector")}, one.labels):
                yield f"{one.where}: Service {subdomain} selects other pods"


def services_lead_to_pods(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """Each Service has the pods of one template behind it, and these have the ports that it names."""
    for service in of_kind(documents, "Service"):
        spec = service["spec"]
        behind = [one for one in pods if selects({"matchLabels": spec.get("selector")}, one.labels)]
        if len(behind) != 1:
            yield f"Service {name_of(service)} has the pods of {len(behind)} templates behind it"
        if not spec.get("ports") and spec.get("clusterIP") != "None":
            yield f"Service {name_of(service)} has no port"
        wanted = [port.get("targetPort", port.get("port")) for port in spec.get("ports", ())]
        yield from (f"Service {name_of(service)}: {text}" for text in missing_ports(wanted, behind))


def missing_ports(wanted: Sequence[int | str], pods: Sequence[Pods]) -> Iterator[str]:
    for one in pods:
        ports = [port for container in one.containers for port in container.get("ports", ())]
        known = {port.get(key) for port in ports for key in ("name", "containerPort")}
        yield from (f"{one.where} has no port {port}" for port in wanted if port not in known)


def strangers_stay_out(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """Each template has one NetworkPolicy of its own, with what its pods need and nothing else."""
    policies = of_kind(documents, "NetworkPolicy")
    for one in pods:
        own = [policy for policy in policies if _applies(policy, one)]
        if len(own) != 1:
            yield f"{one.where}: {len(own)} NetworkPolicies apply, not one"
        yield from (
            f"{one.where}: NetworkPolicy {name_of(policy)}: {text}" for policy in own for text in _said(policy, one)
        )
    for policy in policies:
        if (count := sum(_applies(policy, one) for one in pods)) != 1:
            yield f"NetworkPolicy {name_of(policy)} applies to the pods of {count} templates, not of one"


def _applies(policy: Document, pods: Pods) -> bool:
    same = namespace_of(policy) == pods.namespace
    return same and selects(policy["spec"].get("podSelector"), pods.labels)


def _said(policy: Document, pods: Pods) -> Iterator[str]:
    spec = policy["spec"]
    if sorted(spec.get("policyTypes", ())) != ["Egress", "Ingress"]:
        yield "it does not speak of both directions"
    ingress, egress = spec.get("ingress") or [], spec.get("egress") or []
    inside = [{"podSelector": spec["podSelector"]}]  # the pods that it applies to
    scraped = [rule for rule in ingress if pods.role == TRAINING and _is_scrape(rule)]
    if [rule for rule in ingress if rule not in scraped] != {TRAINING: [{"from": inside}], DOWNLOAD: []}.get(
        pods.role, ingress
    ):
        yield "others reach its pods"
    if not all(rule.get("from") for rule in ingress):
        yield "everybody reaches its pods"
    if pods.role == TRAINING and {"to": inside} not in egress:
        yield "its pods do not reach each other on all ports"
    others = [rule for rule in egress if not (pods.role == TRAINING and rule == {"to": inside})]
    names = [rule for rule in others if _ports(rule) == DNS and rule.get("to")]
    web = [rule for rule in others if _ports(rule) == {(443, "TCP")}]
    if bool(names) != (pods.role != TENSORBOARD) or bool(web) != (pods.role == DOWNLOAD):
        yield "its pods do not reach what they need: the cluster's DNS, and to download HTTPS"
    yield from (f"its pods may do more: {rule}" for rule in others if rule not in [*names, *web])
    wanted = [port["port"] for rule in ingress for port in rule.get("ports", ())]
    yield from missing_ports(wanted, [pods])


def _is_scrape(rule: Document) -> bool:
    """Whether a rule lets another namespace ask for metrics, and for nothing else."""
    selectors = [{*peer} for peer in rule.get("from", ())]
    return selectors == [{"namespaceSelector"}] and _ports(rule) == {("metrics", "TCP")}


def monitors_ask_pods(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """Each PodMonitor has the pods of one template, and these answer others than themselves on the port that it names."""
    for monitor in of_kind(documents, "PodMonitor"):
        spec = monitor["spec"]
        asked = [one for one in pods if selects(spec.get("selector"), one.labels)]
        if len(asked) != 1:
            yield f"PodMonitor {name_of(monitor)} asks the pods of {len(asked)} templates"
        wanted = [port.get("port") for port in spec.get("podMetricsEndpoints", ())]
        yield from (f"PodMonitor {name_of(monitor)}: {text}" for text in missing_ports(wanted or ["metrics"], asked))
        for one in asked:
            env = {entry["name"]: entry.get("value") for c in one.containers for entry in c.get("env", ())}
            ports = [p["containerPort"] for c in one.containers for p in c.get("ports", ()) if p.get("name") in wanted]
            if env.get("SLIPWAY_METRICS_ADDR") != "0.0.0.0" or env.get("SLIPWAY_METRICS_PORT") not in map(str, ports):
                yield f"{one.where} does not answer its PodMonitor"


def _ports(rule: Document) -> set[tuple[int | str, str]]:
    return {(port.get("port"), port.get("protocol", "TCP")) for port in rule.get("ports", ())}


def neighbours_are_own(pods: Sequence[Pods], documents: Sequence[Document]) -> Iterator[str]:
    """What draws the pods together or spreads them speaks of these pods."""
    for one in pods:
        spread = one.spec.get("topologySpreadConstraints", [])
        near = (one.spec.get("affinity") or {}).get("podAffinity") or {}
        preferred = near.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        required = near.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        for term in [*spread, *(row["podAffinityTerm"] for row in preferred), *required]:
            if not selects(term.get("labelSelector"), one.labels):
                yield f"{one.where}: topology {term.get('topologyKey')} speaks of other pods"


NETWORK_RULES = (
    names_fit,
    pods_are_labelled,
    nodes_find_each_other,
    services_lead_to_pods,
    strangers_stay_out,
    monitors_ask_pods,
    neighbours_are_own,
)
