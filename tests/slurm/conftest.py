"""The clusters, one for each way in which Slurm finds a job's processes; and the table of cases with their times, at the end."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster import Cluster, Job, obstacle
from jobs import FIVE_MINUTES, STEP, train

TRACKING = ("linuxproc", "cgroup")  # the second is what production has


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[[str], Cluster]]:
    """A running cluster by its process tracking; all are gone afterwards."""
    running: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def start(tracking: str) -> Cluster:
            if reason := obstacle(tracking):
                pytest.skip(reason)
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


@pytest.fixture(scope="session")
def five_minutes(cluster: Cluster) -> Job:
    """A job that needs five minutes, in allocations of one."""
    options = ("--partition=slow", "--time=1", "--signal=USR1@1")
    return train(cluster, *FIVE_MINUTES, options=options, PACE=str(STEP))


@pytest.fixture(scope="session")
def overtime(cluster: Cluster) -> Job:
    """The same, but nobody tells it early that its minute is over."""
    options = ("--partition=slow", "--time=1", "--signal=CONT@1")
    return train(cluster, *FIVE_MINUTES, options=options, PACE=str(STEP))


@pytest.fixture(scope="session", autouse=True)
def _begin_early(request: pytest.FixtureRequest) -> None:
    """What takes minutes runs on nodes of its own while the other cases do."""
    for name in ("five_minutes", "overtime"):
        if any(name in getattr(item, "fixturenames", ()) for item in request.session.items):
            request.getfixturevalue(name)


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
        terminalreporter.write_line(f"{name:<92}  {report.outcome:<7}  {report.duration:6.1f} s")
