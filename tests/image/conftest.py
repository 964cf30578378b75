"""The image on a real engine. `container` starts containers of it; IMAGE names another than slipway:dev."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import IMAGE, Containers, docker, fresh_name
from person import person  # noqa: F401  # a fixture


@pytest.fixture(scope="session", autouse=True)
def _image(image: str) -> None:
    """All of these need the image."""


@pytest.fixture
def container(undo: ExitStack) -> Containers:
    """Starts containers, gives their exit codes and logs, and fails on warnings that a test does not name."""
    return Containers(undo)


@pytest.fixture
def network(undo: ExitStack) -> str:
    """A network of the user's, on which containers know each other's names."""
    name = fresh_name()
    docker("network", "create", name)
    undo.callback(docker, "network", "rm", name)
    return name


@pytest.fixture
def cuda() -> None:
    """What this test is about is in images with CUDA alone."""
    variant = docker("image", "inspect", "--format", '{{index .Config.Labels "slipway.variant"}}', IMAGE).strip()
    if variant == "cpu":
        pytest.skip(f"{IMAGE} has no CUDA")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder for results that any user may write to."""
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o777)
    return folder
