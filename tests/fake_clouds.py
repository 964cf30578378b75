"""Metadata services of three clouds in their documented formats, which announce the end of their machine when a test says so.

`fetch` answers in process, by a clock of the test's own; `serve` puts one behind a port.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slipway.launch.interruptions.metadata import Answer

NAME = "trainer_7"  # of this machine on Azure


@dataclass
class Cloud:
    """A service whose machine is announced to go at `due`, `left` seconds before that happens. Times are Unix seconds."""

    now: float = 1_795_000_000.0
    due: float = float("inf")
    left: float = 120.0
    kind: str = ""  # of the announcement, where there are several
    asked: list[str] = field(default_factory=list)  # requests
    bodies: list[str] = field(default_factory=list)  # of those that have one

    def fetch(self, method: str, path: str, headers: Mapping[str, str], body: str = "") -> Answer:
        """The answer to a request."""
        self.asked.append(f"{method} {path}")
        self.bodies += [body] if body else []
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        status, text = self.answer(method, parts.path, query, {name.lower(): value for name, value in headers.items()})
        return Answer(status, text, self.now)

    def answer(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
        """Status and text."""
        raise NotImplementedError

    @property
    def announced(self) -> bool:
        """Whether the end is announced."""
        return self.now >= self.due

    @property
    def deadline(self) -> datetime:
        """When the machine goes."""
        return datetime.fromtimestamp(int(self.due + self.left), UTC)


@dataclass
class FakeAws(Cloud):
    """IMDSv2 of EC2. Each token is good for so many requests."""

    uses: int = 7
    rebalance: bool = False
    _tokens: dict[str, int] = field(default_factory=dict)

    def answer(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
        """As the instance metadata guide says."""
        if path == "/latest/api/token":
            if method != "PUT" or not headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdecimal():
                return 400, "<title>400 - Bad Request</title>"
            self._tokens[token := f"AQAEA{len(self._tokens):051d}=="] = self.uses
            return 200, token
        token = headers.get("x-aws-ec2-metadata-token", "")
        if self._tokens.get(token, 0) <= 0:
            return 401, "<title>401 - Unauthorized</title>"
        self._tokens[token] -= 1
        time = self.deadline.strftime("%Y-%m-%dT%H:%M:%SZ") if self.announced else ""
        if path == "/latest/meta-data/spot/instance-action" and self.announced:
            return 200, json.dumps({"action": self.kind or "terminate", "time": time})
        if path == "/latest/meta-data/events/recommendations/rebalance" and self.rebalance:
            return 200, '{"noticeTime": "2026-10-27T08:22:00Z"}'
        return 404, "<title>404 - Not Found</title>"


@dataclass
class FakeGcp(Cloud):
    """The metadata server of Compute Engine. A request that waits for a change lets the time pass."""

    left: float = 30.0
    event: str = "NONE"

    def answer(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
        """As the metadata guide says."""
        if headers.get("metadata-flavor") != "Google":
            return 403, "Forbidden: missing Metadata-Flavor:Google header"
        if query.get("wait_for_change") == "true" and not self.announced:
            self.now = min(self.now + float(query["timeout_sec"]), self.due)
        values = {"preempted": "TRUE" if self.announced else "FALSE", "maintenance-event": self.event}
        value = values.get(path.removeprefix("/computeMetadata/v1/instance/"))
        return (404, "not found") if value is None else (200, value)


@dataclass
class FakeAzure(Cloud):
    """Scheduled events of Azure, with those of other machines among them."""

    left: float = 30.0
    others: int = 2
    status: str = "Scheduled"
    alone: bool = False  # no other machine goes with this one

    def answer(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
        """As the guide to scheduled events says."""
        if headers.get("metadata") != "true" or "api-version" not in query:
            return 400, json.dumps({"error": "Bad request. Required metadata header not specified"})
        if path == "/metadata/instance/compute/name":
            return (200, NAME) if query.get("format") == "text" else (400, "{}")
        if path != "/metadata/scheduledevents":
            return 404, "{}"
        if method == "POST":
            return 200, ""
        others = [] if self.alone else ["trainer_70"]
        events = [self._event(other, "Reboot", [f"trainer_{10 + other}"]) for other in range(self.others)]
        events += [self._event(99, self.kind or "Preempt", [*others, NAME.upper()])] if self.announced else []
        return 200, json.dumps({"DocumentIncarnation": len(events), "Events": events})

    def _event(self, number: int, kind: str, resources: list[str]) -> dict[str, Any]:
        started = self.status == "Started"
        return {
            "EventId": f"602d9444-d2cd-49c7-8624-{number:012d}",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": resources,
            "EventStatus": self.status,
            "NotBefore": "" if started or self.due == float("inf") else format_datetime(self.deadline, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }


CLOUDS = {"aws": FakeAws, "gcp": FakeGcp, "azure": FakeAzure}


@contextmanager
def serve(cloud: Cloud) -> Iterator[str]:
    """The address of a service on this machine; requests that wait are answered at once."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            answer = cloud.fetch(self.command, self.path, self.headers, body)  # type: ignore[arg-type]  # as case-blind
            content = answer.text.encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
