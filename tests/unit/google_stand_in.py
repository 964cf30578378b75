"""A stand-in for Google Cloud Storage, for which there is no server to run: what its XML API says of the requests that stores send.

https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from fake_store import md5

TOKEN, BUCKET, PAGE = "a-token", "test", 7  # PAGE: entries of a listing that come at once
ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>.</Message></Error>'


@dataclass
class Google:
    """The bucket `test`. `conditions`: the values of `x-goog-if-generation-match` that came."""

    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, content: bytes, condition: str | None) -> tuple[int, str]:
        """Status and code. Generation 0 is that of an object that is not there."""
        with self.lock:
            if condition is not None:
                self.conditions.append(condition)
                if name in self.objects:
                    return 412, "PreconditionFailed"
            self.objects[name] = content, datetime.now(UTC)
            return 200, ""

    def list_page(self, prefix: str, delimiter: str, after: str) -> str:
        """A page of a listing: objects, and what stands before the delimiter in the names of others."""
        with self.lock:
            names = sorted(name for name in self.objects if name.startswith(prefix))
            facts = {name: self.objects[name] for name in names}

        def entry(name: str) -> str:
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            return f"{prefix}{head}{found}" if found else name

        entries = [each for each, _ in groupby(map(entry, names)) if each > after]
        rows = []
        for each in entries[:PAGE]:
            if each in facts:
                content, time = facts[each]
                rows.append(
                    f'<Contents><Key>{escape(each)}</Key><LastModified>{time:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified><ETag>"{md5(content)}"'
                    f"</ETag><Size>{len(content)}</Size></Contents>"
                )
            else:
                rows.append(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>")
        more = len(entries) > PAGE
        token = f"<NextContinuationToken>{escape(entries[PAGE - 1])}</NextContinuationToken>" if more else ""
        about = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>{about}{"".join(rows)}</ListBucketResult>'


def make_handler(google: Google) -> type[BaseHTTPRequestHandler]:
    """What answers the requests of a client."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if name := self.name():
                self.say(*google.put(name, content, self.headers["x-goog-if-generation-match"]), etag=md5(content))

        def do_DELETE(self) -> None:
            if name := self.name():
                there = google.objects.pop(name, None)
                self.say(*((404, "NoSuchKey") if there is None else (204, "")))

        def do_GET(self) -> None:
            name = self.name()
            if name is None:
                return
            if not name:
                query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
                after = query.get("continuation-token") or query.get("start-after", "")
                page = google.list_page(query.get("prefix", ""), query.get("delimiter", ""), after)
                self.answer(200, page.encode(), {})
            elif (found := google.objects.get(name)) is None:
                self.say(404, "NoSuchKey")
            else:
                content, time = found
                headers = {"ETag": f'"{md5(content)}"', "Last-Modified": format_datetime(time, usegmt=True)}
                if part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or ""):
                    first, last = int(part[1]), min(int(part[2]), len(content) - 1)
                    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                    content = content[first : last + 1]
                self.answer(206 if part else 200, content, headers)

        do_HEAD = do_GET  # noqa: N815

        def name(self) -> str | None:
            """The object that is asked for, empty for the bucket; None after a refusal."""
            bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.say(401, "AuthenticationRequired")
            elif bucket != BUCKET:
                self.say(404, "NoSuchBucket")
            else:
                return name
            return None

        def say(self, status: int, code: str, etag: str = "") -> None:
            """Answer without a content but an error's code."""
            self.answer(status, ERROR.format(code).encode() if code else b"", {"ETag": f'"{etag}"'} if etag else {})

        def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            """Answer a request."""
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serve_google(google: Google) -> Iterator[dict[str, str]]:
    """The variables that lead to the stand-in, while it runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(google))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield {"GOOGLE_BASE_URL": f"http://127.0.0.1:{server.server_address[1]}", "GOOGLE_BEARER_TOKEN": TOKEN}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
