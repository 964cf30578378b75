"""Values that nobody chose: placeholders that are left, what Kubernetes writes for a Service, addresses that are none. Pure."""

import ipaddress
import re
import socket
from contextlib import suppress

from slipway.protocol.mistake import nearest


class ForeignValueError(ValueError):
    """A value that cannot be used. Its text says what to type, so that no example follows."""


# What stands for a value that somebody was to fill in: $NAME, ${NAME}, $(command), `command`, {{name}}, <name>, %q{NAME}.
_PLACEHOLDER = r"\$[\w{(]|`|\{\{|^<.*>$|%q?[{(]"
_SERVICE_LINK = r"(?:tcp|udp|sctp)://"  # Kubernetes writes NAME_PORT so for each Service of the namespace


def explain_value(name: str, text: str) -> str:
    """Why a value is none that somebody chose, and what to do about it; empty where it may be."""
    if re.search(_PLACEHOLDER, text):
        return (
            "this placeholder was not replaced by a value. In Kubernetes $(NAME) is replaced if NAME is defined above it in the "
            "same `env` list; a shell replaces $NAME outside of single quotes; docker, --env-file and .env replace nothing"
        )
    if re.match(_SERVICE_LINK, text) and name.endswith("_PORT"):
        service = name.removesuffix("_PORT").lower().replace("_", "-")
        return (
            f'a Kubernetes Service called "{service}" put it there. Set `enableServiceLinks: false` in the pod\'s spec, give the '
            f"Service another name, or set {name} in the container's `env`, which wins"
        )
    if name == "NPROC_PER_NODE" and nearest(text.lower().partition(":")[0], ("auto", "cpu", "gpu", "cuda")) == "cuda":
        return "type gpu for one process per GPU, or a number"
    if "\r" in text:
        return (
            "it has a carriage return in it, as files with Windows line ends have. Remove them: sed -i 's/\\r$//' FILE"
        )
    return ""


def parse_address(text: str) -> str:
    """A host's name or address, without blanks around it and without the brackets of an IPv6 address. Raises ExplainedError."""
    host = text.strip(" \t\n")
    bracketed = re.fullmatch(r"\[([^\[\]]*)\]", host)
    if ":" in (host := bracketed[1] if bracketed else host) and _is_ipv6(host):
        return host
    if reason := _not_a_host(host):
        raise ForeignValueError(reason)
    return host


def _not_a_host(host: str) -> str:
    """What a text is that is no host, and what to write instead; empty for a name or an IPv4 address."""
    if not host:
        return "it is blank. Give the name or address of node 0"
    if len(several := re.findall(r"[^\s,;]+", host)) > 1:
        return f"these are {len(several)} addresses. Give the one of node 0 that the others reach, {several[0]} for example"
    if url := re.match(r"\w+://(?:\[([^\[\]@]*)\]|([^/:@\[\]]*)(?=[/:]|$))?", host):
        alone = url[1] or url[2]
        return f"it is a URL. Give the host alone{f', {alone}' if alone else ''}, and the port as MASTER_PORT"
    if port := re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+):([0-9]+)", host):
        return f"it has a port in it. Set MASTER_ADDR={port[1]} and MASTER_PORT={port[2]}"
    if host.find(":") == len(host) - 1:
        return "it ends with a colon. Give the name or address of node 0 alone"
    if host.count(":") > 1:
        return "it is not an IPv6 address. Give the name or address of node 0"
    if host.isdecimal():  # which a resolver takes for an address: 7 is 0.0.0.7
        return "it is a number. Give the name or address of node 0"
    if re.fullmatch(r"[0-9.]+", host):
        return "" if _is_ipv4(host) else "it is not an IPv4 address, which has four numbers from 0 to 255"
    if odd := re.search(r"[^\w.-]", host):
        return f"{odd[0]!r} cannot be part of a host's name. Give the name or address of node 0 alone"
    if any(not 1 <= len(label) <= 63 for label in host.removesuffix(".").split(".")):
        return "each part of a host's name has 1 to 63 characters"
    if re.search(r"(^|\.)-|-(\.|$)", host):
        return "no part of a host's name begins or ends with a hyphen"
    return ""


def _is_ipv6(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).version == 6
    return False


def _is_ipv4(host: str) -> bool:
    """As the resolver reads it, which takes 127.1 as well."""
    with suppress(OSError):
        return bool(socket.inet_aton(host))
    return False
