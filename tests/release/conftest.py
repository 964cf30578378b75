"""What the tests of releases share: the image, a small stand-in for it, a registry."""

import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from commands import output, run
from needs import REGISTRY
from ports import take_port
from waiting import wait_until

SMALL = """\
FROM scratch
ARG VARIANT
COPY random /
COPY share /opt/slipway/share
LABEL slipway.variant=${VARIANT}
CMD ["none"]
"""
Build = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _image(image: str) -> None:
    """All of these need the image."""


@pytest.fixture
def build_small(undo: ExitStack, tmp_path: Path) -> Build:
    """Builds an image of a few megabytes in two layers, with a list of wheels: what is slow with the real one is tried on it."""

    def build(variant: str = "cuda12", architecture: str = "amd64") -> str:
        name = f"slipway-test-{secrets.token_hex(4)}"
        folder = tmp_path / name
        (folder / "share").mkdir(parents=True)
        (folder / "share" / "wheels.tsv").write_text(
            "a-1-py3-none-any.whl\t1000000\t00\nb-1-py3-none-any.whl\t500000\t00\n"
        )
        (folder / "random").write_bytes(secrets.token_bytes(2_000_000))
        (folder / "Dockerfile").write_text(SMALL)
        undo.callback(run, "docker", "image", "rm", "--force", name)
        options = ("--platform", f"linux/{architecture}", "--build-arg", f"VARIANT={variant}", "--tag", name)
        output("docker", "buildx", "build", "--load", *options, folder)
        return name

    return build


@pytest.fixture
def small(build_small: Build) -> str:
    """Such an image."""
    return build_small()


@pytest.fixture
def registry(undo: ExitStack, tmp_path: Path) -> str:
    """Debian's registry on this machine, empty; its address."""
    address = f"127.0.0.1:{take_port()}"
    settings = tmp_path / "registry.yaml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'blobs'}}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    log = undo.enter_context((tmp_path / "registry.log").open("w"))
    process = undo.enter_context(subprocess.Popen([REGISTRY, "serve", settings], stdout=log, stderr=log))
    undo.callback(process.terminate)

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "registry.log").read_text()
        with suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
            return True
        return False

    wait_until(answers, lambda: f"the registry's answer:\n{(tmp_path / 'registry.log').read_text()}", every=0.2)
    return address
