"""The metadata services of three clouds: which requests ask whether this machine is about to be taken back, and what answers.

A request goes to one address that only this machine reaches, never through a proxy, and follows no redirect.
"""

import http.client
import json
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from slipway.launch.interruptions.notice import (
    Notice,
    read_aws_action,
    read_aws_rebalance,
    read_azure_events,
    read_gcp_maintenance,
    read_gcp_preempted,
)
from slipway.launch.resolve.spot import AWS, AZURE, GCP

LINK_LOCAL = "http://169.254.169.254"
# Variables of the clouds' own libraries with another address of the service.
ENDPOINTS = {AWS: "AWS_EC2_METADATA_SERVICE_ENDPOINT", GCP: "GCE_METADATA_HOST"}
SERVICE = {AWS: "The EC2 metadata service", GCP: "Google Cloud's metadata server", AZURE: "Azure's metadata service"}
POLICY = "a NetworkPolicy of Kubernetes can block it"
TIMEOUT = 3.0  # s until a connection, and until each part of an answer
WAIT = 5  # s that Google Cloud's server may keep a request while nothing changes
LARGEST = 1 << 20  # bytes of an answer
OK, UNAUTHORIZED, FORBIDDEN, MISSING = 200, 401, 403, 404
TTL = 21_600  # s that a token of AWS is good for: the most that it allows
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Answer(NamedTuple):
    """What the service answered; `date` is its own clock (Unix seconds), None where it does not say."""

    status: int
    text: str
    date: float | None = None


Fetch = Callable[..., Answer]  # method, path, headers, perhaps a body; raises OSError, http.client.HTTPException


class RefusedError(OSError):
    """The service answered with a status that makes no sense here."""

    def __init__(self, path: str, status: int) -> None:
        super().__init__(f"HTTP status {status} for {path.partition('?')[0]}")
        self.status = status


def fetch_from(base: str) -> Fetch:
    """What sends requests to the service at this address; an address that makes no sense is a ValueError of each request."""

    def fetch(method: str, path: str, headers: Mapping[str, str], body: str = "") -> Answer:
        place = urlsplit(base)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT + WAIT)
        try:
            connection.request(method, path, body.encode() or None, dict(headers))
            answer = connection.getresponse()
            text = answer.read(LARGEST).decode(errors="replace")
            return Answer(answer.status, text, read_date(answer.getheader("Date")))
        finally:
            connection.close()

    return fetch


def read_date(text: str | None) -> float | None:
    """The time in an HTTP header (Unix seconds); None where it is none."""
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def address_of(cloud: str, environ: Mapping[str, str]) -> str:
    """The address of a cloud's service: the usual one, or the one that a variable of the cloud's own libraries names."""
    named = environ.get(ENDPOINTS.get(cloud, "")) or LINK_LOCAL
    return named if "://" in named else f"http://{named}"


class Sighting(NamedTuple):
    """What one look found, and the service's own time at that, None where it does not say."""

    notices: list[Notice]
    date: float | None


class Service(Protocol):
    """A metadata service. `pause`: seconds between polls."""

    pause: float

    def poll(self, now: float, *, wait: bool) -> Sighting:
        """Ask once. `now` is this machine's own clock; with `wait` the service may keep the request until something changes.

        Raises OSError, http.client.HTTPException, ValueError.
        """
        ...

    def approve(self, notice: Notice) -> None:
        """Let the machine go before the deadline of a notice with an `approval`. Raises OSError, http.client.HTTPException."""


class Aws:
    """IMDSv2: a token first, then two paths that are missing (404) as long as there is nothing to say."""

    pause = 5.0  # as AWS recommends

    def __init__(self, fetch: Fetch) -> None:
        self._fetch, self._token = fetch, ""

    def poll(self, now: float, *, wait: bool) -> Sighting:
        """As Service says."""
        action = self._get("spot/instance-action")
        if action.status == OK:
            return Sighting([read_aws_action(action.text)], action.date)
        if action.status != MISSING:
            raise RefusedError("spot/instance-action", action.status)
        rebalance = self._get("events/recommendations/rebalance")
        return Sighting(read_aws_rebalance(rebalance.text) if rebalance.status == OK else [], rebalance.date)

    def _get(self, key: str) -> Answer:
        path = f"/latest/meta-data/{key}"
        self._token = self._token or self._new_token()
        answer = self._fetch("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == UNAUTHORIZED:  # the token is too old
            self._token = self._new_token()
            answer = self._fetch("GET", path, {"X-aws-ec2-metadata-token": self._token})
        return answer

    def approve(self, notice: Notice) -> None:
        """Nothing: no notice of AWS has an approval."""

    def _new_token(self) -> str:
        path = "/latest/api/token"
        answer = self._fetch("PUT", path, {"X-aws-ec2-metadata-token-ttl-seconds": str(TTL)})
        if answer.status != OK or not (answer.text.isascii() and answer.text.isprintable()):
            raise RefusedError(path, answer.status)
        return answer.text


class Gcp:
    """Two keys; the server can keep a request for the first one until it changes."""

    pause = 1.0

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def poll(self, now: float, *, wait: bool) -> Sighting:
        """As Service says."""
        preempted = self._get(f"preempted?wait_for_change=true&timeout_sec={WAIT}" if wait else "preempted")
        if preempted.status != OK:
            raise RefusedError("instance/preempted", preempted.status)
        if found := read_gcp_preempted(preempted.text, now if preempted.date is None else preempted.date):
            return Sighting(found, preempted.date)
        maintenance = self._get("maintenance-event")
        return Sighting(read_gcp_maintenance(maintenance.text) if maintenance.status == OK else [], maintenance.date)

    def approve(self, notice: Notice) -> None:
        """Nothing: no notice of Google Cloud has an approval."""

    def _get(self, key: str) -> Answer:
        return self._fetch("GET", f"/computeMetadata/v1/instance/{key}", {"Metadata-Flavor": "Google"})


class Azure:
    """Scheduled events of a group of machines, and once the name of this one."""

    pause = 1.0  # as Azure recommends

    def __init__(self, fetch: Fetch) -> None:
        self._fetch, self._name = fetch, ""

    def poll(self, now: float, *, wait: bool) -> Sighting:
        """As Service says."""
        self._name = self._name or self._get(AZURE_NAME).text.strip()
        answer = self._get(AZURE_EVENTS)
        return Sighting(read_azure_events(answer.text, self._name), answer.date)

    def approve(self, notice: Notice) -> None:
        """As Service says: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#start-an-event."""
        body = json.dumps({"StartRequests": [{"EventId": notice.approval}]})
        answer = self._fetch("POST", AZURE_EVENTS, {"Metadata": "true", "Content-Type": "application/json"}, body)
        if answer.status != OK:
            raise RefusedError(AZURE_EVENTS, answer.status)

    def _get(self, path: str) -> Answer:
        answer = self._fetch("GET", path, {"Metadata": "true"})
        if answer.status != OK:
            raise RefusedError(path, answer.status)
        return answer


SERVICES: Mapping[str, Callable[[Fetch], Service]] = {AWS: Aws, GCP: Gcp, AZURE: Azure}


def explain_failure(cloud: str, error: Exception) -> tuple[str, str]:
    """Why a service is of no use, and what to do about it."""
    service, status = SERVICE[cloud], error.status if isinstance(error, RefusedError) else 0
    change = "type `aws ec2 modify-instance-metadata-options --instance-id ID"
    if cloud == AWS and isinstance(error, TimeoutError):
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html: the default hop limit is 1.
        why = f"its answers reach a container on a bridged network only with a hop limit of 2, and {POLICY}"
        return (
            f"{service} does not answer; {why}",
            f"{change} --http-put-response-hop-limit 2`, or use the host's network (--network host)",
        )
    if cloud == AWS and status == FORBIDDEN:
        return f"{service} is switched off for this instance", f"{change} --http-endpoint enabled`"
    trouble = f"{service} gives no usable answer ({error or type(error).__name__})"
    if isinstance(error, TimeoutError):
        trouble = f"{service} does not answer; {POLICY}"
    return trouble, "the launcher keeps asking; SLIPWAY_SPOT=off ends that"
