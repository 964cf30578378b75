"""What the tests of releases share: the image, a small stand-in for it, a registry."""

import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import output, run
from needs import REGISTRY


@pytest.fixture(scope="session", autouse=True)
def _image(image: str) -> None:
    """All of these need the image."""


@pytest.fixture
def small(undo: ExitStack, tmp_path: Path) -> str:
    """An image of a few megabytes in two layers, with a list of wheels: what is slow with the real one is tried on it."""
    folder = tmp_path / "small"
    (folder / "share").mkdir(parents=True)
    (folder / "share" / "wheels.tsv").write_text(
        "a-1-py3-none-any.whl\t1000000\t00\nb-1-py3-none-any.whl\t500000\t00\n"
    )
    (folder / "random").write_bytes(secrets.token_bytes(2_000_000))
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY random /\nCOPY share /opt/slipway/share\nCMD ["none"]\n')
    name = f"slipway-test-{secrets.token_hex(4)}"
    undo.callback(run, "docker", "image", "rm", "--force", name)
    output("docker", "buildx", "build", "--load", "--tag", name, folder)
    return name


@pytest.fixture
def registry(undo: ExitStack, tmp_path: Path) -> str:
    """Debian's registry on this machine, empty; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = tmp_path / "registry.yaml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'blobs'}}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    log = undo.enter_context((tmp_path / "registry.log").open("w"))
    process = undo.enter_context(subprocess.Popen([REGISTRY, "serve", settings], stdout=log, stderr=log))
    undo.callback(process.terminate)
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return address
    pytest.fail(f"the registry does not answer: {(tmp_path / 'registry.log').read_text()}")
