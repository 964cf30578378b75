"""`project(...)` makes a compose project; what it started is gone after the test, however that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compose_projects import CPU, GPT, SHORT, Project
from person import person  # noqa: F401  # a fixture
from ports import take_port


@pytest.fixture(scope="session", autouse=True)
def _image(image: str) -> None:
    """All of these need the image."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Makes the test's project; keywords are lines of its `.env`."""
    made: list[Project] = []

    def make(**settings: str) -> Project:
        made.append(Project(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.remove()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A training that was killed, was started again by Docker, and was stopped later; TensorBoard runs beside it."""
    project = Project(
        tmp_path_factory.mktemp("trained"),
        COMPOSE_FILE=CPU,
        COMPOSE_PROFILES="tensorboard",
        TENSORBOARD_PORT=str(take_port()),
        WORKLOAD=GPT,
    )
    try:
        project("up", "--detach")
        project.wait_for_snapshot("train")
        project.kill("train")
        project.wait_for_steps_after_resuming("train")
        project("stop", "train")
        yield project
    finally:
        project.remove()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A training that came to its end."""
    project = Project(tmp_path_factory.mktemp("finished"), COMPOSE_FILE=CPU, WORKLOAD=SHORT)
    try:
        project("up", timeout=240)
        yield project
    finally:
        project.remove()
