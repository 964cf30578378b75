"""`make audit` against a service of the tests' own that knows of vulnerabilities."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from commands import ROOT, run

CONFS = "".join(file.read_text() for file in (ROOT / "images/slipway").glob("*.conf"))
LOCKS = "\n".join((ROOT / name).read_text() for name in set(re.findall(r"^LOCK=(.*)", CONFS, re.MULTILINE)))


class Service(ThreadingHTTPServer):
    """Answers as OSV does; `known` says which package has which finding, `asked` what it was asked about."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.known: dict[str, str] = {}
        self.asked: set[tuple[str, str]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/query"


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = asked["package"]["name"]
        self.server.asked.add((name, asked["version"]))
        package = {"name": name, "ecosystem": "PyPI"}
        affected = [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}]
        finding = {"id": self.server.known.get(name), "modified": "2026-01-01T00:00:00Z", "affected": affected}
        body = json.dumps({"vulns": [finding]} if finding["id"] else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = Thread(target=service.serve_forever)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def test_it_asks_about_every_package_and_version_in_the_locks(service: Service) -> None:
    done = run("images/release/audit.sh", PIP_AUDIT_OSV_URL=service.url)
    assert done.returncode == 0, done.stderr
    assert service.asked == set(re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", LOCKS, re.MULTILINE))


def test_the_exception_is_let_pass_and_nothing_else(service: Service) -> None:
    service.known = {"torch": "PYSEC-2026-139"}
    done = run("images/release/audit.sh", PIP_AUDIT_OSV_URL=service.url)
    assert done.returncode == 0, done.stderr
    service.known |= {"numpy": "PYSEC-2026-1"}
    done = run("images/release/audit.sh", PIP_AUDIT_OSV_URL=service.url)
    assert done.returncode == 1
    assert "PYSEC-2026-1\n" in done.stdout
    assert "PYSEC-2026-139" not in done.stdout


def test_a_service_that_does_not_answer_is_no_clean_bill() -> None:
    done = run("images/release/audit.sh", PIP_AUDIT_OSV_URL="http://127.0.0.1:9/v1/query")
    assert done.returncode == 69
    assert "nothing was audited" in done.stderr
    assert "Traceback" not in done.stderr
