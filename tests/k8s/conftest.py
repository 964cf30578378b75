"""Manifests need kubectl, which renders them without a cluster. At the end it is listed what no schema was found for."""

from collections.abc import Callable

import pytest
from rehearsing import cluster, list_fields, noted  # noqa: F401  # a fixture
from schemas import MINORS

UNCHECKED = "a kind without a schema"


@pytest.fixture
def note_unchecked(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Note a kind that has no schema, and whose it is."""
    return lambda kind, operator: request.node.user_properties.append((UNCHECKED, (kind, operator)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was not validated, and what not rehearsed, and why."""
    list_fields(terminalreporter)
    rows = noted(terminalreporter, UNCHECKED)
    if not rows:
        return
    terminalreporter.section(f"schemas of Kubernetes {MINORS[0]} to {MINORS[-1]}")
    for kind, operator in sorted(rows):
        terminalreporter.write_line(
            f"{kind:<24}skipped: {operator} kind, of which Kubernetes has no schema; the Job within was validated as one"
        )
