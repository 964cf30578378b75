"""Does this node know the names that it needs, and is its port free?"""

import socket
from collections.abc import Callable, Iterator

from slipway.launch.health.finding import misconfigured, ok, warning
from slipway.launch.health.patience import within
from slipway.launch.muster.card import Finding
from slipway.launch.muster.connection_errors import connection_failure, explain_connection
from slipway.launch.resolve.connectivity import is_loopback, listen
from slipway.launch.resolve.topology import Topology
from slipway.protocol.errors import LaunchError

SECONDS = 10.0  # name servers are asked twice at most in that time (resolv.conf(5): 5 s each)
Resolve = Callable[[str], str]


def resolve(name: str) -> str:
    """The first address of a name. Raises socket.gaierror."""
    try:
        found = within(SECONDS, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, f"no name server answered within {SECONDS:.0f} s") from None
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host looks like that") from None
    return str(found[0][4][0])


def look_at_names(topology: Topology | None, ask: Resolve = resolve) -> Iterator[Finding]:
    """This host's name, and with several nodes MASTER_ADDR and the port on node 0. `ask` is for tests."""
    several = topology is not None and topology.nodes > 1
    yield judge_own_name(socket.gethostname(), several, ask)
    if topology is not None and several:
        yield judge_master(topology, ask)
        if topology.rank == 0:
            yield judge_port(topology.master_port, topology.master_addr)


def judge_own_name(name: str, several: bool, ask: Resolve) -> Finding:
    """Whether this host's own name resolves; gloo asks for it where no network interface is named."""
    try:
        return ok("host name", f"{name}, {ask(name)}")
    except OSError as error:
        found = f"{name} does not resolve ({error.strerror or error})"
    if not several:
        return ok("host name", f"{found}, which a single node can do without")
    return warning("host name", found, "add it to /etc/hosts or to DNS; other nodes and gloo ask for it")


def judge_master(topology: Topology, ask: Resolve) -> Finding:
    """Whether MASTER_ADDR leads somewhere, and not back to this machine alone."""
    name, what = topology.master_addr, "MASTER_ADDR"
    try:
        address = ask(name)
    except OSError as error:
        kind, words = connection_failure(error)
        told = explain_connection(kind, words, name, topology.master_port, topology.runtime)
        found, _, cause = told.partition("; usually: ")
        return misconfigured(what, found, f"usually: {cause}" if cause else "")
    known = name if name == address else f"{name}, {address}"
    if is_loopback(address):
        found = f"{known}: this machine alone, but the job has {topology.nodes} nodes"
        return warning(what, found, "unless all of them run on this machine, give the name or address of node 0")
    return ok(what, known)


def judge_port(port: int, address: str) -> Finding:
    """Whether node 0 can listen on MASTER_PORT."""
    try:
        listen(port, loopback=is_loopback(address)).close()
    except LaunchError as error:
        return misconfigured("MASTER_PORT", str(error))
    return ok("MASTER_PORT", f"{port} is free")
