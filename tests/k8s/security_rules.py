"""The Pod Security Standard *restricted*, field by field, and what we ask beyond it.

https://kubernetes.io/docs/concepts/security/pod-security-standards, as of Kubernetes 1.37.
"""

from collections.abc import Iterator

from templates import Document, Pods

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
CONFINED = ("RuntimeDefault", "Localhost")
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
HOOKS = ("livenessProbe", "readinessProbe", "startupProbe")


def restricted_pod(pods: Pods) -> Iterator[str]:
    """What the standard says of the pod as a whole."""
    spec, context = pods.spec, pods.spec.get("securityContext") or {}
    yield from (f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume.get('name')} is a {kind}" for kind in sorted(set(volume) - {"name"} - VOLUMES))
    for sysctl in context.get("sysctls", ()):
        if sysctl.get("name") not in SYSCTLS:
            yield f"sysctl {sysctl.get('name')} is not allowed"
    annotations = (pods.template.get("metadata") or {}).get("annotations") or {}
    for key, value in annotations.items():
        if "apparmor.security.beta.kubernetes.io" in key and value == "unconfined":
            yield f"{key} is unconfined"
    if "ephemeralContainers" in spec:
        yield "ephemeralContainers are for debugging"


def restricted_containers(pods: Pods) -> Iterator[str]:
    """What it says of containers, from their own context or else the pod's."""
    whole = pods.spec.get("securityContext") or {}
    for container in pods.containers:
        own = container.get("securityContext") or {}
        for text in (*_rights(own), *_identity(own, whole), *_confinement(own, whole), *_hosts(container)):
            yield f"container {container.get('name')}: {text}"


def _rights(own: Document) -> Iterator[str]:
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in capabilities.get("drop", ()):
        yield "not all capabilities are dropped"
    if more := set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"capabilities {sorted(more)} are added"
    if own.get("procMount", "Default") != "Default":
        yield f"procMount is {own['procMount']}"


def _identity(own: Document, whole: Document) -> Iterator[str]:
    if {**whole, **own}.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if 0 in (own.get("runAsUser"), whole.get("runAsUser")):
        yield "runAsUser is 0"


def _confinement(own: Document, whole: Document) -> Iterator[str]:
    if ({**whole, **own}.get("seccompProfile") or {}).get("type") not in CONFINED:
        yield "there is no seccompProfile"
    for context in (own, whole):
        if context.get("appArmorProfile", {}).get("type", CONFINED[0]) not in CONFINED:
            yield "its AppArmor profile is unconfined"
        selinux = context.get("seLinuxOptions", {})
        if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
            yield f"seLinuxOptions are {selinux}"
        if context.get("windowsOptions", {}).get("hostProcess"):
            yield "hostProcess is set"


def _hosts(container: Document) -> Iterator[str]:
    yield from (f"hostPort {port['hostPort']}" for port in container.get("ports", ()) if port.get("hostPort"))
    hooks = [container.get(name) or {} for name in HOOKS] + list((container.get("lifecycle") or {}).values())
    for hook in hooks:
        if any((hook.get(action) or {}).get("host") for action in ("httpGet", "tcpSocket")):
            yield "a probe or hook asks another host"


def beyond_the_standard(pods: Pods) -> Iterator[str]:
    """What the standard leaves open: what is written, whom a pod knows, what of a machine it takes."""
    spec = pods.spec
    yield from (
        f"{field} is not false"
        for field in ("automountServiceAccountToken", "enableServiceLinks")
        if spec.get(field) is not False
    )
    for volume in spec.get("volumes", ()):
        if any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources", ())):
            yield f"volume {volume['name']} holds a service-account token"
    for container in pods.containers:
        name, resources = container.get("name"), container.get("resources") or {}
        if (container.get("securityContext") or {}).get("readOnlyRootFilesystem") is not True:
            yield f"container {name}: its root file system can be written to"
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for device in sorted(key for key in {**requests, **limits} if "/" in key):  # as nvidia.com/gpu, rdma/…
            if requests.get(device) != limits.get(device):
                yield f"container {name}: requests and limits of {device} differ"


SECURITY_RULES = (restricted_pod, restricted_containers, beyond_the_standard)
