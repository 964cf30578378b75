"""What a failed connection means, what usually causes it where this launcher runs, and how often a launcher says so. Pure."""

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from slipway.launch.resolve.connectivity import is_loopback
from slipway.launch.resolve.runtimes import runtime_of
from slipway.protocol.errors import LaunchError


class TryLaterError(ConnectionError):
    """Node 0 answered, but cannot admit this launcher at the moment; the text says why."""


class MovedError(TryLaterError):
    """Another launcher leads the job, in node 0's place; the text says which."""


class OtherJobError(ConnectionError):
    """Node 0 of another job answered."""


class RankTakenError(LaunchError):
    """Another launcher has the rank that this one was given."""


class UnprovenError(ConnectionError):
    """Somebody answered who does not prove that it knows SLIPWAY_TOKEN."""


class RelayedError(UnprovenError):
    """The connection does not lead straight to whoever proved it; the text has both addresses of this side."""


class StalledError(ConnectionError):
    """Node 0 greeted, and what was sent to it, or its next answer, is lost."""


class SilentError(ConnectionError):
    """A peer gave no heartbeat for too long: it is frozen or cut off."""


FIREWALL = "a firewall between the nodes drops the packets; nodes of one job need all TCP ports open to each other"
STALLED = (
    "packets of full size may be lost on the way, where the MTU of a link is smaller than that of the interfaces (jumbo frames, "
    "VPN, overlay network); `ping -M do -s 1472 HOST` shows it for 1500 bytes"
)
# By kind and by what runs us (`host`: all others); {service} and {get_service} are what `name_service` makes of MASTER_ADDR.
CAUSES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "does not resolve": {
            "docker": "containers know each other's names only on a user-defined network; between machines use "
            "--network host and the machine's own name or address",
            "compose": "no service of this project that runs has this name (docker compose ps); between machines start each node "
            "with docker run --network host",
            "kubernetes": "node 0's pod has no address yet (kubectl get pods), or the Service {service} is not there, not "
            "headless, or selects other pods. Type `{get_service} --output yaml`: it needs clusterIP: None, "
            "publishNotReadyAddresses: true and the pods' labels as its selector; DNS may lag some seconds behind",
            "slurm": "the container does not use the node's /etc/hosts or DNS; mount /etc/hosts or give an address",
            "host": "a typing mistake, or a name that only some of the nodes know; an IP address always works",
        },
        "no DNS": {
            "docker": "the container has no network (--network none), or none that leads to a name server",
            "kubernetes": "a NetworkPolicy of these pods lets nothing out to port 53 (UDP and TCP) of the cluster's DNS, which "
            "must answer for the Service {service} (kubectl get networkpolicy; {get_service}), or that DNS is down",
            "slurm": "the node has no name server that answers; a name in /etc/hosts or an IP address needs none",
            "host": "the name server in /etc/resolv.conf cannot be reached; an IP address needs none",
        },
        "refused": {
            "docker": "node 0 has not started yet, listens on another MASTER_PORT, or sits in a bridge network of its own: use "
            "--network host on all",
            "compose": "node 0's service is not running yet (docker compose ps), or listens on another MASTER_PORT",
            "kubernetes": "node 0's pod is not running yet, or listens on another MASTER_PORT",
            "slurm": "node 0's task has not started yet, or MASTER_PORT differs between the nodes",
            "host": "node 0 has not started yet, has already ended, or listens on another MASTER_PORT",
        },
        "unreachable": {
            "docker": "the container has no route there: --network none, or another bridge network; use --network host",
            "kubernetes": "a NetworkPolicy or the pod network forbids it",
            "slurm": "the nodes have no common network; take a host name of the network that they share",
            "host": "the nodes have no common network, or MASTER_ADDR is an address of another one",
        },
        "timed out": {
            "docker": f"{FIREWALL}, or MASTER_ADDR is an address inside another machine's bridge network",
            "kubernetes": f"a NetworkPolicy drops the packets, or {FIREWALL}",
            "host": FIREWALL,
        },
        "hung up": {
            "kubernetes": "a service mesh, such as Istio, answers in the place of a node 0 that is not there yet. Give the pods "
            'the label sidecar.istio.io/inject: "false"; or something else listens there, or node 0 is just ending',
            "host": "something else listens there, node 0 is just ending, or a proxy is in between",
        },
        "stalled": {"host": STALLED},
        "unproven": {
            "host": "it is set to another value there, or on only one of the two nodes; or another program took this port first"
        },
        "relayed": {
            "kubernetes": "a service mesh, such as Istio, forwards the connection. Give the pods the label "
            'sidecar.istio.io/inject: "false"; or the name leads to another pod, or to '
            "a Service with a cluster IP (clusterIP: None has none)",
            "host": "a proxy, or a router that translates addresses (NAT), forwards the connection; with a SLIPWAY_TOKEN nodes "
            "connect directly only. Or the name leads to another machine; give an address that node 0 itself has",
        },
        "another job": {
            "host": "two jobs share a name or a Service; give each a MASTER_ADDR, or a MASTER_PORT, of its own"
        },
    }
)
# Kinds of failures while a node 0 that was there is being replaced: Kubernetes removes the name of a pod that is gone.
COMES_AND_GOES = frozenset({"does not resolve", "refused", "unreachable", "timed out"})
# Kinds after which somebody else may have to lead: node 0 does not answer this launcher at all.
LOST = COMES_AND_GOES | {"no DNS", "stalled"}
ASTRAY = (
    "timed out",
    "stalled",
    "hung up",
    "another job",
    "unproven",
    "relayed",
)  # kinds after which a name's next address comes first
ELSEWHERE = ("refused", "unreachable", "timed out", "hung up")  # where node 0 finds another machine in its own place
NAMELESS = ("does not resolve", "no DNS")
# What node 0 sees as the sender of every connection that Istio's sidecar hands on (its inbound passthrough).
MESH = ("127.0.0.6", "::6")
IN_A_MESH = (
    "a service mesh, such as Istio, hands this connection on from {peer}, so no node can reach another one by its address. Give "
    'the pods the label sidecar.istio.io/inject: "false"'
)
# For what MASTER_ADDR leads to on node 0; {names} are those of its machine.
ITSELF = "this is node 0, and MASTER_ADDR leads to {place}; type a name or an address of this machine: {names}"
INSIDE = (
    "{address} is this container, and node 0 runs in another one; give the name or the address of node 0's machine, and "
    "--network host on all"
)


def connection_failure(error: BaseException) -> tuple[str, str]:
    """The kind of a failed connection (a key of CAUSES) and the system's own words for it."""
    if isinstance(error, socket.gaierror):
        return "no DNS" if error.errno == socket.EAI_AGAIN else "does not resolve", error.strerror or "unknown name"
    if isinstance(error, TryLaterError):
        return "not now", str(error)
    if isinstance(error, StalledError):
        return "stalled", "it sends a greeting, but then does not answer"
    if isinstance(error, OtherJobError):
        return "another job", str(error)
    if isinstance(error, RelayedError):
        return "relayed", str(error)
    if isinstance(error, UnprovenError):
        return "unproven", str(error)
    if isinstance(error, SilentError):
        return "timed out", str(error)
    if isinstance(error, ConnectionRefusedError):
        return "refused", "connection refused"
    number = getattr(error, "errno", None)
    if isinstance(error, TimeoutError) or number == errno.ETIMEDOUT:
        return "timed out", "no answer"
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        return "unreachable", os.strerror(number).lower()
    return "hung up", str(error) or "the connection was closed"


def explain_connection(
    kind: str,
    words: str,
    address: str,
    port: int,
    runtime: str,
    found: Sequence[str] = (),
    *,
    own: Sequence[str] = (),
    met: bool = False,
) -> str:
    """One line about a failed connection to node 0, with the usual cause; where it was `met` before there is but one.

    `found` are the addresses that the name leads to; `own`, if node 0 failed to connect to itself, the names and addresses of its
    machine.
    """
    if kind not in CAUSES:
        return f"node 0 at {address}:{port} says: {words}"
    leads = f" ({', '.join(found[:4])})" if set(found) - {address} else ""
    place = f"{address}:{port}{leads}"
    subjects = {
        "does not resolve": f"MASTER_ADDR={address} does not resolve ({words})",
        "no DNS": f"MASTER_ADDR={address} does not resolve: no name server answers ({words})",
        "refused": f"nothing listens at {place} (connection refused)",
        "unreachable": f"{place} cannot be reached ({words})",
        "timed out": f"{place} does not answer",
        "stalled": f"{place} accepts connections, but does not answer",
        "another job": f"{place} leads to {words}",
        "unproven": f"{place} answers, but does not prove that it knows this launcher's SLIPWAY_TOKEN",
        "relayed": f"{place} does not lead straight to node 0: {words}",
        "hung up": f"{place} answers, but not as a Slipway launcher ({words})",
    }
    if met and kind in COMES_AND_GOES:
        return f"{subjects[kind]}; node 0 was reached there before, but cannot be reached now."
    cause = CAUSES[kind].get(runtime, CAUSES[kind]["host"])
    unknown = kind in NAMELESS and not runtime_of(runtime).has_services  # there it may lag behind
    if own and (kind in ELSEWHERE or unknown):
        place = "no machine" if unknown else "another machine"
        cause = ITSELF.format(place=place, names=", ".join(own[:5]))
    elif kind in ("refused", "unreachable") and runtime_of(runtime).is_engine and is_loopback(address):
        cause = INSIDE.format(address=address)
    return f"{subjects[kind]}; usually: {cause.format_map(name_service(address))}."


def name_service(address: str) -> dict[str, str]:
    """Which Service of Kubernetes a name goes through, and how one asks for it.

    `<pod>.<service>.<namespace>.svc.<zone>` in full, `<pod>.<service>` or `<service>` within a namespace:
    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
    """
    labels = address.rstrip(".").split(".")
    full = "svc" in labels[2:]
    service, namespace = labels[: labels.index("svc", 2)][-2:] if full else (labels[:2][-1], "")
    where = f" --namespace {namespace}" if namespace else ""
    return {"service": service, "get_service": f"kubectl get service {service}{where}"}


def service_name(address: str) -> str:
    """The name in DNS of the Service behind a pod's name, `<pod>.<service>…`; empty where the address is no such name."""
    labels = address.rstrip(".").split(".")
    pods = labels.index("svc") == 3 if "svc" in labels else len(labels) == 2
    return ".".join(labels[1:]) if pods else ""


def explain_service(name: str, failure: tuple[str, str]) -> str:
    """One line about the Service of node 0's pod, whose `name` does not resolve; `failure` as of `connection_failure`."""
    kind, words = failure
    cause = CAUSES[kind]["kubernetes"].format_map(name_service(f"pod.{name}"))
    return (
        f"no other pod finds this one: the name of its Service, {name}, does not resolve ({words}); usually: {cause}."
    )


def explain_ring(runtime: str) -> str:
    """What to do where nodes cannot connect to each other."""
    return (
        "NCCL and gloo open ports of their own between all nodes, so every node must reach every other at the address "
        f"its connection comes from. {runtime_of(runtime).ports}"
    )


LINE_SECONDS = (5.0, 30.0)  # between two lines: at first, and in the long run
CAUSE_SECONDS = 180.0  # between two explanations of the same cause, of which the first one may have scrolled away


def pause_after(waited: float) -> float:
    """The seconds until the next line, after so many seconds of waiting."""
    return min(max(LINE_SECONDS[0], waited / 4), LINE_SECONDS[1])


class Complaints:
    """What one launcher has printed so far in a rendezvous about why it cannot reach node 0: less often the longer it waits, with
    the cause again every few minutes. All moments are seconds since the rendezvous began.
    """

    def __init__(self) -> None:
        self._explained: dict[str, float] = {}  # when the cause of each kind of failure was given
        self._next = 0.0  # when the next line is due

    def is_due(self, waited: float) -> bool:
        """Whether it is time for a line."""
        return waited >= self._next

    def explains(self, kind: str, waited: float) -> bool:
        """Whether the cause of this kind of failure is to be given, now for the first time or again; notes that it is."""
        due = kind not in self._explained or waited - self._explained[kind] >= CAUSE_SECONDS
        if due:
            self._explained[kind] = waited
        return due

    def say(self, waited: float) -> None:
        """Note that a line is printed."""
        self._next = waited + pause_after(waited)
