"""What a test needs of the machine: where that is missing it is skipped, with what to type; with STRICT=1 it fails."""

import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import needs
import pytest
from sections import section_of

from slipway.launch.resolve.host import name_user

# Of a user without a name, as `docker run --user 1234` makes one, torch asks for it while it is imported.
os.environ.update(name_user(os.environ))


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the image under test, which must be there where an engine is."""
    if subprocess.run(["docker", "image", "inspect", needs.IMAGE], capture_output=True).returncode:
        pytest.fail(f"there is no image {needs.IMAGE}. Type: make image", pytrace=False)
    return needs.IMAGE


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    """Removes what a test made on the engine, the newest first."""
    with ExitStack() as stack:
        yield stack


def pytest_configure(config: pytest.Config) -> None:
    """The marks of tests."""
    config.addinivalue_line("markers", "core: part of what `make test` runs without FULL=1")
    config.addinivalue_line("markers", "pull: part of CI of a change, not of `make test`")
    config.addinivalue_line("markers", "needs(*names): what the machine must have for it, of tests/needs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run."""
    for item in items:
        section = section_of(item.path)
        names = [name for mark in item.iter_markers("needs") for name in mark.args]
        for name in [*(section.needs if section else ()), *names]:
            if reason := needs.reason(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A check that did not run is no success: with STRICT only want of what a Debian machine need not have excuses it."""
    report = yield
    if report.skipped and os.environ.get("STRICT") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not needs.is_excused(reason.removeprefix("Skipped: ")):
            report.outcome = "failed"
            report.longrepr = f"skipped, and STRICT is set: {reason}"
    return report
