"""A check that did not run is no success: in CI a skip of what the machine could do fails."""

import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

IMAGE = os.environ.get("IMAGE", "slipway:dev")
DRIVER = Path("/dev/nvidiactl")  # there where NVIDIA's driver is


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the image under test; engine and image must be there: a test that did not run is no success."""
    if subprocess.run(["docker", "version"], capture_output=True).returncode:
        pytest.fail("no Docker Engine answers. Type: make engine", pytrace=False)
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
        pytest.fail(f"there is no image {IMAGE}. Type: make image", pytrace=False)
    return IMAGE


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    """Removes what a test made on the engine, the newest first."""
    with ExitStack() as stack:
        yield stack


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Only what the kernel itself lacks may be skipped there (such reasons say `this kernel`), or what needs a GPU without one."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "this kernel" not in reason and not ("needs a GPU" in reason and not DRIVER.exists()):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where it can run: {reason}"
    return report
