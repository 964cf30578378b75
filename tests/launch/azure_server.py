"""A real server of Azure Blob Storage (Azurite, which Microsoft makes) with one container, `test`."""

import base64
import hashlib
import hmac
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import needs
from ports import take_ports
from s3_server import answers
from waiting import wait_until

# The account that Azurite has: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"


@contextmanager
def serve_azure(folder: Path, certificate: Path | None = None) -> Iterator[int]:
    """The port of a server whose files are in a folder, while it runs; with a `certificate` and key.pem beside it, over TLS."""
    port = take_ports(1)
    tls = ["--cert", str(certificate), "--key", str(certificate.with_name("key.pem"))] if certificate else []
    command = [
        str(needs.AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent", "--disableTelemetry", *tls,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)

        def is_up() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            return answers(port)

        try:
            wait_until(is_up, lambda: (folder / "log").read_text()[-2000:])
            make_container(variables(port, tls=bool(tls))["AZURE_STORAGE_ENDPOINT"])
            yield port
        finally:
            server.kill()
            server.wait()


def make_container(endpoint: str) -> None:
    """Make the container, which obstore cannot: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key"""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/test", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    more = {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{endpoint}/test?restype=container", headers=headers | more, method="PUT")
    anyone = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    with urllib.request.build_opener(urllib.request.ProxyHandler({}), anyone).open(request, timeout=60) as answer:
        assert answer.status == 201, answer.read()


def variables(port: int, *, tls: bool = False) -> dict[str, str]:
    """What a client needs to reach a server at a port of this machine."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"http{'s' if tls else ''}://127.0.0.1:{port}/{ACCOUNT}",
    }
