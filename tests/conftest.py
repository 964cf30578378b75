"""A check that did not run is no success: in CI a skip of what the machine could do fails."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Only what the kernel itself lacks may be skipped there; such reasons say `this kernel`."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "this kernel" not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where it can run: {reason}"
    return report
