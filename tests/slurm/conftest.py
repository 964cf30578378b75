"""The clusters, one for each way in which Slurm finds a job's processes; and the table of cases with their times, at the end."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster import Cluster
from needs import reason

TRACKING = ("linuxproc", "cgroup")  # the second is what production has


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of pytest's workers each takes whole files, on clusters of its own: first comes what takes minutes and mostly waits."""
    items.sort(key=lambda item: item.path.name != "test_time_limit.py")


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[[str], Cluster]]:
    """A running cluster by its process tracking; all are gone afterwards."""
    running: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def start(tracking: str) -> Cluster:
            if tracking == "cgroup" and (why := reason("freezer")):
                pytest.skip(why)
            if tracking not in running:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
                running[tracking] = stack.enter_context(Cluster(folder, tracking))
            return running[tracking]

        yield start


@pytest.fixture(scope="session")
def cluster(clusters: Callable[[str], Cluster]) -> Cluster:
    """The cluster that signals every process of a job."""
    return clusters("linuxproc")


@pytest.fixture(params=TRACKING)
def either(request: pytest.FixtureRequest, clusters: Callable[[str], Cluster]) -> Cluster:
    """Each cluster in turn: signals reach every process, or the task's first one alone."""
    return clusters(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(kind, [])]
    here = [report for report in reports if report.nodeid.startswith("tests/slurm/")]
    cases = [report for report in here if report.when == "call" or report.skipped]
    if not cases:
        return
    terminalreporter.section("cases on a real Slurm")
    for report in sorted(cases, key=lambda report: report.nodeid):
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        why = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        seconds = f"{report.duration:6.1f} s"
        terminalreporter.write_line(f"{name:<92}  {report.outcome:<7}  {why.removeprefix('Skipped: ') or seconds}")
