"""What went wrong with the Hub, and what to do about it.

The library wraps causes in each other: a rate limit surfaces as "entry not found locally". The whole chain is read.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, NoReturn

from slipway.protocol.errors import DISK_ERRORS
from slipway.protocol.mistake import ConfigurationError, ExplainedError, did_you_mean
from slipway.protocol.printable import listed
from slipway.protocol.proxies import explain_proxy_use, proxy_variable
from slipway.protocol.redact import redact

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

KINDS = {"model": "model", "dataset": "data set"}
SHOWN = 6  # names in a list
PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})
ELSEWHERE = "Or fetch it where there is a network, into a cache (HF_HOME) that this machine sees: slipway data fetch"


class HubError(ExplainedError):
    """The Hub, or the way to it, fails; it may not when tried again."""


def explain_failure(error: Exception, repo: str, revision: str | None, kind: str) -> Exception:
    """The real cause: ConfigurationError for what the user can mend, HubError for what may pass, OSError of the disk.

    An error that says nothing about the Hub comes back as it is.
    """
    from httpx2 import HTTPError, InvalidURL, LocalProtocolError, UnsupportedProtocol
    from huggingface_hub import constants
    from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, HFValidationError

    for cause in chain(error):
        if isinstance(cause, HubError | ConfigurationError):
            return cause
        if isinstance(cause, HFValidationError):
            return ConfigurationError(f"{repo!r} is no name of the Hub's: type owner/name or owner/name@revision.")
        if isinstance(cause, UnicodeEncodeError | LocalProtocolError):  # whose own text may show it
            return ConfigurationError(
                "The token in HF_TOKEN, or in the file at HF_TOKEN_PATH, is none: it holds odd characters."
            )
        if is_proxy_mistake(cause):
            return ConfigurationError(explain_proxy(os.environ))
        if isinstance(cause, InvalidURL | UnsupportedProtocol):
            return ConfigurationError(
                f"HF_ENDPOINT {hub_address()!r} is no address such as https://hub.example; unset or correct it."
            )
        if isinstance(cause, FileMetadataError | JSONDecodeError):
            return ConfigurationError(
                f"{hub_address()} does not answer as the Hub does; look at HF_ENDPOINT and at the proxy's settings."
            )
        if isinstance(cause, PermissionError) or (isinstance(cause, OSError) and cause.errno == errno.EROFS):
            return ConfigurationError(
                f"{cause.filename or constants.HF_HUB_CACHE} cannot be written ({cause.strerror}); set HF_HOME to a folder that "
                "can, or HF_HUB_OFFLINE=1 where the cache holds all that is needed."
            )
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return cause
        if isinstance(cause, HfHubHTTPError):
            return explain_answer(cause, repo, revision, kind)
    for cause in chain(error):
        if isinstance(cause, HTTPError):
            return HubError(f"{explain_silence(error)} {ELSEWHERE} {repo}")
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return HubError(
            f"A file of {repo} ended too early: the connection was dropped. Nothing of it was kept; try again."
        )
    return error


def is_proxy_mistake(cause: BaseException) -> bool:
    """Whether the library could not use a proxy's address, by the errors of its `Proxy` and of the URL in it (httpx2 2.16)."""
    from httpx2 import URL, InvalidURL
    from huggingface_hub import constants

    if isinstance(cause, InvalidURL):  # it does not say whose
        with suppress(InvalidURL):
            return bool(URL(constants.ENDPOINT).host)
        return False
    return (isinstance(cause, ImportError) and "socksio" in str(cause)) or (
        isinstance(cause, ValueError) and str(cause).startswith("Unknown scheme for proxy URL ")
    )


def explain_proxy(environ: Mapping[str, str]) -> str:
    """Which variables name a proxy that cannot be used, without their values, which may hold a password."""
    known = [name for name in environ if name.lower() in PROXIES and environ[name]]
    odd = [name for name in known if environ[name].partition("://")[0].lower() not in ("http", "https")]
    schemes = {environ[name].partition("://")[0] for name in odd if "://" in environ[name]}
    named, kind = " and ".join(sorted(odd or known)) or "the system's settings", ", ".join(sorted(schemes))
    return (
        f"The proxy in {named}{f' ({kind})' if kind else ''} cannot be used. Name one such as "
        "http://proxy.example:3128, or unset the variable. For SOCKS (socks5://) install the package socksio: pip install socksio"
    )


def hub_address() -> str:
    """The address of the Hub, without what HF_ENDPOINT may have in it of a user and a password."""
    from huggingface_hub import constants

    return re.sub(r"://\S*@", "://***@", constants.ENDPOINT)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, outermost first."""
    seen: list[BaseException] = []
    rest: BaseException | None = error
    while rest is not None and rest not in seen:
        yield rest
        seen.append(rest)
        rest = rest.__cause__ or rest.__context__


def explain_answer(error: HfHubHTTPError, repo: str, revision: str | None, kind: str) -> Exception:
    """What an answer that is no success means."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    code, what = error.response.status_code, KINDS[kind]
    token = "the token in use" if get_token() else "no token: set HF_TOKEN, or HF_TOKEN_PATH to a file that holds it"
    if isinstance(error, RevisionNotFoundError):
        return ConfigurationError(f"The {what} {repo} has no revision {revision}. {revisions(repo, revision, kind)}")
    if isinstance(error, GatedRepoError):
        return ConfigurationError(
            f"The {what} {repo} is for those who accept its terms: do so at {hub_address()}/{repo}, and set HF_TOKEN "
            f"to a token of that account. Asked with {token}."
        )
    if isinstance(error, RepositoryNotFoundError):
        return ConfigurationError(
            f"The Hub has no {what} {repo}, or does not show it to everyone. {neighbours(repo, kind)}Asked with {token}."
        )
    if code in (401, 403):
        return ConfigurationError(
            f"The Hub refuses the {what} {repo} ({code}): the token may be wrong, old, or not made for reading it. Make a "
            f"new one at {hub_address()}/settings/tokens. Asked with {token}."
        )
    if code == 404:
        return ConfigurationError(f"{error.response.url.path} does not exist at {hub_address()}.")
    if code == 429:
        wait = error.response.headers.get("Retry-After")
        return HubError(
            f"The Hub limits how often it is asked, and {repo} came too soon (429). Try again in "
            f"{f'{wait} s' if wait else 'some minutes'}; more is allowed with a token (HF_TOKEN). {ELSEWHERE} {repo}"
        )
    return HubError(f"The Hub answers {code} to a request for {repo}; try again later.")


def explain_silence(error: BaseException) -> str:
    """Why there was no answer, or not all of it."""
    from httpx2 import ConnectError, TimeoutException

    causes, hub = list(chain(error)), hub_address()
    scheme, _, host = hub.partition("://")
    host = host.partition("/")[0].partition(":")[0]
    variable = proxy_variable(scheme, host, os.environ)
    proxied = f" {explain_proxy_use(variable, host)}" if variable else ""
    unresolved = [cause for cause in causes if isinstance(cause, socket.gaierror)]
    if unresolved:
        why = f"cannot be resolved here ({unresolved[0].strerror}): is there a network, a DNS?"
        return f"The name of the Hub, {hub}, {why}{proxied}"
    if any(isinstance(cause, TimeoutException | TimeoutError) for cause in causes):
        return f"The Hub, {hub}, does not answer in time.{proxied}"
    last = redact("", str(causes[-1])) or type(causes[-1]).__name__
    if any(isinstance(cause, ConnectError) for cause in causes):
        return f"The Hub, {hub}, cannot be reached ({last}).{proxied}"
    return f"The connection to the Hub, {hub}, was dropped ({last}); nothing of the file was kept. Try again."


def revisions(repo: str, revision: str | None, kind: str) -> str:
    """Which revisions there are, the nearest first; empty where the Hub does not say."""
    from huggingface_hub import HfApi

    names: list[str] = []
    with suppress(Exception):  # the mistake itself is what has to be told
        refs = HfApi().list_repo_refs(repo, repo_type=kind)
        names = [ref.name for ref in [*refs.branches, *refs.tags]]
    meant = did_you_mean(revision or "", names)
    return f"{meant} There are {listed(names, SHOWN)}, and each commit.".lstrip() if names else ""


def neighbours(repo: str, kind: str) -> str:
    """Repositories that may have been meant; empty where none are found."""
    from huggingface_hub import HfApi

    api, other = HfApi(), "dataset" if kind == "model" else "model"
    with suppress(Exception):
        if api.repo_exists(repo, repo_type=other):
            return f"There is a {KINDS[other]} of that name: --kind {other}. "
    names: list[str] = []
    with suppress(Exception):
        owner = repo.rpartition("/")[0]
        found: Any = (api.list_models if kind == "model" else api.list_datasets)(author=owner or None, limit=100)
        names = [one.id for one in found] if owner else []
    return f"{did_you_mean(repo, names)} ".lstrip()


def missing_offline(repo: str, revision: str | None, kind: str, include: Sequence[str]) -> NoReturn:
    """Raise ConfigurationError: HF_HUB_OFFLINE is set, and the cache does not hold it all."""
    from huggingface_hub import constants

    words = [repo, *(["--revision", revision] if revision else []), *(["--kind", kind] if kind != "model" else [])]
    words += [word for glob in include for word in ("--include", f"'{glob}'")]
    raise ConfigurationError(
        f"HF_HUB_OFFLINE is set, and the cache {constants.HF_HUB_CACHE} does not hold all of the {KINDS[kind]} "
        f"{repo} at {revision or 'its main revision'}. Unset it, or type where there is a network: slipway data fetch "
        f"{' '.join(words)}"
    )
