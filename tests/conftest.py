"""What a test needs of the machine: where that is missing it is skipped, with what to type; with STRICT=1 it fails."""

import os
import random
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from datetime import date
from importlib.util import find_spec

import needs
import pytest
from sections import section_of
from selection import QUARANTINED, Quarantine, read_share

from slipway.launch.resolve.host import name_user

# Under nohup SIGHUP is ignored, which launchers inherit and respect; tests send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Of a user without a name, as `docker run --user 1234` makes one, torch asks for it while it is imported.
os.environ.update(name_user(os.environ))
if find_spec("hypothesis"):  # an environment for tests/gpu alone may lack it
    from hypothesis import HealthCheck, settings

    # A busy machine is no failure.
    settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("slipway")


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


@pytest.fixture
def dice() -> random.Random:
    """Chance. Its seed is shown where a test fails, and SEED in the environment gives it."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"SEED={seed}")
    return random.Random(seed)


def pytest_configure(config: pytest.Config) -> None:
    """The marks of tests."""
    for tier, what in {"core": "a newcomer's `make test`", "pull": "CI of a change"}.items():
        config.addinivalue_line(
            "markers", f"{tier}: first runs in {what}; without a mark: in the nightly tier (sections.py)"
        )
    config.addinivalue_line(
        "markers",
        "quarantine(reason, until): its failure does not count before that day, YYYY-MM-DD; at most five at a time",
    )
    config.addinivalue_line(
        "markers", "any_torch: runs with other versions of PyTorch, too: make test-torch (other_torch.sh)"
    )
    config.addinivalue_line("markers", "needs(*names): what the machine must have for it, of tests/needs.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to another share, skip what this machine cannot run, and note which tests are in quarantine."""
    if share := read_share(os.environ):
        others = [item for item in items if not share.has(str(item.path.relative_to(config.rootpath)))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    for item in items:
        if quarantine := find_quarantine(item):
            item.user_properties.append((QUARANTINED, str(quarantine)))
        section = section_of(item.path)
        names = [name for mark in item.iter_markers("needs") for name in mark.args]
        for name in [*(section.needs if section else ()), *names]:
            if reason := needs.reason(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def find_quarantine(item: pytest.Item) -> Quarantine | None:
    """The test's quarantine, None where it has none."""
    mark = item.get_closest_marker(QUARANTINED)
    return Quarantine.read(*mark.args, **mark.kwargs) if mark else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure in quarantine is skipped, with its reason, until the quarantine is over.

    A check that did not run is no success: with STRICT only the lack of what a Debian machine need not have excuses it.
    """
    report = yield
    if report.failed and (quarantine := find_quarantine(item)) and not quarantine.is_over(date.today()):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"failed in quarantine: {report.longreprtext}")
        return report
    if report.skipped and os.environ.get("STRICT") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not needs.is_excused(reason.removeprefix("Skipped: ")):
            report.outcome = "failed"
            report.longrepr = f"skipped, and STRICT is set: {reason}"
    return report
