"""The network as this node sees it: the listening socket, who holds a port, which interface leads to a peer."""

import array
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipway.protocol.errors import CONFIGURATION, LaunchError

SIOCGIFCONF = 0x8912  # linux/sockios.h: all IPv4 addresses with their interfaces
IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: 16 bytes of name, then a sockaddr_in with the address at 20
BACKLOG = 4096  # thousands of launchers may connect in one second; the kernel lowers it to somaxconn
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class PortInUseError(LaunchError):
    """Somebody listens on the port already; the message names who."""


def listen(port: int, *, loopback: str = "") -> socket.socket:
    """A socket that listens on `port` (0: any free one), for IPv6 and IPv4 where this machine has both.

    `loopback`: on this address alone, off the network. LaunchError (78) where the port is taken, naming who holds it.
    """
    try:
        return _bind(port, loopback)
    except OSError as error:
        kind = PortInUseError if error.errno == errno.EADDRINUSE else LaunchError
        raise kind(_describe(error, port), CONFIGURATION) from None


def is_loopback(address: str) -> bool:
    """Whether an address, or the name `localhost`, means this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() in LOOPBACK_NAMES


def loopback_address(address: str) -> str:
    """The address on which to listen where `address` means this machine alone; empty where it does not."""
    if not is_loopback(address):
        return ""
    return "127.0.0.1" if address.lower() in ("localhost", "127.0.0.1") else address


def without_link_local(addresses: Sequence[str], name: str) -> tuple[str, ...]:
    """Those of the addresses behind a name that do not depend on the network interface. LaunchError (78) where there are none."""
    kept = tuple(address for address in addresses if not _is_link_local(address))
    if addresses and not kept:
        raise LaunchError(
            f"MASTER_ADDR={name} leads to {addresses[0]}, a link-local address: torch and NCCL cannot say which interface it is "
            "on. Give an IPv4 address, or an IPv6 address of the network (fd.. or 2...).",
            CONFIGURATION,
        )
    return kept


def _is_link_local(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.version == 6 and found.is_link_local


def free_port(preferred: int) -> int:
    """`preferred` where nothing listens on it, else a port that is free at the moment."""
    try:
        return _probe_port(preferred if preferred < 65_536 else 0)
    except OSError:
        return _probe_port(0)


def port_holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """Who listens on a TCP port of this machine: `process 4711 (python -m http.server)`; None where it cannot be known.

    A process of another user or container cannot be seen without privileges.
    """
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(proc / "net" / table, port)}
    targets = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.iterdir() if targets else ():
        with suppress(OSError):  # gone, or not ours to see
            if process.name.isdecimal() and any(str(link.readlink()) in targets for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {process.name} ({words[:120]})"
    return None


def interface_towards(address: str, *, one_machine: bool = False) -> str | None:
    """The interface whose address this machine uses to reach an IP address, for NCCL and gloo.

    None where there is no route, or where only loopback leads there although the job spans several machines.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # UDP: asks the routing table, sends nothing
            source = probe.getsockname()[0]
    except OSError:
        return None
    name = _interfaces().get(ipaddress.ip_address(source.partition("%")[0]))
    return name if one_machine or name != "lo" else None


def own_names() -> tuple[str, ...]:
    """This machine's name and its addresses in networks, for people."""
    addresses = [address for address in _interfaces() if not (address.is_loopback or address.is_link_local)]
    return (socket.gethostname(), *map(str, sorted(addresses, key=lambda address: address.version)))


def interfaces_with_address() -> frozenset[str]:
    """The names of this machine's network interfaces that have an IP address."""
    return frozenset(_interfaces().values())


def _bind(port: int, loopback: str = "") -> socket.socket:
    if loopback:
        family = socket.AF_INET6 if ":" in loopback else socket.AF_INET
        return socket.create_server((loopback, port), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # IPv6 compiled in, but switched off
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


def _probe_port(port: int) -> int:
    with _bind(port) as probe:
        return int(probe.getsockname()[1])


def _describe(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(port) or "another process (of another user or container, so its name cannot be seen)"
        return (
            f"MASTER_PORT={port} is in use on this node by {holder}. Stop it, or set another MASTER_PORT on all nodes; "
            "two jobs on one machine need different ports. Another node of the same job on this machine needs a RANK of its own."
        )
    if error.errno == errno.EACCES:
        return f"MASTER_PORT={port} needs privileges on this node; use a port from 1024 on, 29500 by default."
    return f"cannot listen on MASTER_PORT={port}: {error.strerror}."


def _listeners(table: Path, port: int) -> list[str]:
    """Inodes of the sockets that listen on a port, from /proc/net/tcp or tcp6 (state 0A is LISTEN)."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _interfaces() -> dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]:
    """Every address of this machine with the interface that has it."""
    names: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str] = {}
    table = array.array("B", bytes(IFREQ_BYTES * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFCONF, struct.pack("iL", len(table), table.buffer_info()[0]))
    for start in range(0, struct.unpack("iL", answer)[0], IFREQ_BYTES):
        entry = table[start : start + IFREQ_BYTES].tobytes()
        label = entry[:16].split(b"\0")[0].decode()
        names[ipaddress.IPv4Address(entry[20:24])] = label.partition(":")[0]  # eth0:1 is an address label of eth0
    table6 = Path("/proc/net/if_inet6")
    for line in table6.read_text().splitlines() if table6.exists() else ():
        number, *_, name = line.split()
        names[ipaddress.IPv6Address(bytes.fromhex(number))] = name
    return names
