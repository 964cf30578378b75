"""Which proxy a request goes through, by the variables that curl, Python and the libraries for stores and the Hub read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it


def proxy_variable(scheme: str, host: str, environ: Mapping[str, str]) -> str:
    """The variable that names a proxy for requests to a host by http or https; empty if they are sent directly."""
    excluded = _excluded(environ)
    if uses_no_proxy(environ) or proxy_bypass_environment(host, {"no": ",".join(excluded)}):
        return ""
    for part in excluded:
        with suppress(ValueError):
            if ip_address(host.strip("[]")) in ip_network(part, strict=False):
                return ""
    names = (name for kind in (scheme, "all") for name in (f"{kind}_proxy".upper(), f"{kind}_proxy"))
    return next((name for name in names if environ.get(name)), "")


def uses_no_proxy(environ: Mapping[str, str]) -> bool:
    """Whether NO_PROXY says that no request goes through a proxy."""
    return "*" in _excluded(environ)


def _excluded(environ: Mapping[str, str]) -> list[str]:
    return re.split(r"[,\s]+", environ.get("NO_PROXY") or environ.get("no_proxy") or "")


def explain_proxy_use(variable: str, host: str) -> str:
    """What to do about a request that failed on its way through a proxy. Its address is not shown: it may have a password."""
    return (
        f"The request went through the proxy in {variable}: correct it, or set NO_PROXY={host} if this server is reached "
        "without a proxy."
    )
