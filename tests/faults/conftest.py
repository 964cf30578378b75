"""Scenes for faults, an uninterrupted run to compare with, and the table with what was measured, at the end."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launch", "image")]

from containers import PATIENCE  # noqa: E402
from nodes import Nodes  # noqa: E402
from once import make_once, shared_folder  # noqa: E402
from scene import Scene  # noqa: E402
from table import Fault, Parting  # noqa: E402

ROW = "a row of the table of faults"
WIDTHS = (44, 7, 64, 8, 30)


@pytest.fixture
def engine(fault: Fault | Parting, request: pytest.FixtureRequest) -> None:
    """For rows that need an engine: the image."""
    if "engine" in fault.needs:
        request.getfixturevalue("image")


@pytest.fixture
def scene(engine: None, tmp_path: Path, killed: Path) -> Iterator[Scene]:
    """A folder for a fault; whatever is started there has ended afterwards."""
    with ExitStack() as stack:
        yield Scene(tmp_path, stack, killed)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the job ends with when nothing happens."""

    def make(folder: Path) -> None:
        with ExitStack() as stack:
            job = Scene(folder, stack).start()
            assert job.end() == 0, job.text

    return Scene(make_once(shared_folder(tmp_path_factory) / "reference", make), ExitStack()).result()


@pytest.fixture(scope="session")
def undisturbed(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two nodes to which nothing happens, as node 0 has it."""

    def make(folder: Path) -> None:
        with ExitStack() as stack:
            job = Nodes(Scene(folder, stack))
            for rank in (0, 1):
                job.start(rank)
            assert job.end(PATIENCE) == (0, 0), job.text

    [run] = make_once(shared_folder(tmp_path_factory) / "undisturbed", make).glob("disk-0/gpt-*")
    return run


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died after step 25, with snapshots of the steps 10 and 20."""

    def make(folder: Path) -> None:
        with ExitStack() as stack:
            job = Scene(folder, stack).start(do="kill", beat=("train", 25, 1))
            assert job.end() == 1, job.text

    return make_once(shared_folder(tmp_path_factory) / "killed", make) / "run"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[Fault | Parting, str, str, float], None]:
    """Note a row of the table."""

    def note(fault: Fault | Parting, code: str, line: str, seconds: float) -> None:
        told = re.sub(r"node 0 \([^)]*\)(, |: )", "", line)  # on every line, and always the same
        row = (fault.name, code, told, f"{seconds:.1f}/{fault.bound:.0f}", fault.resume.text)
        request.node.user_properties.append((ROW, row))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, of what the tests' reports bring along."""
    told = [report for reports in terminalreporter.stats.values() for report in reports]
    rows = [row for report in told for name, row in getattr(report, "user_properties", []) if name == ROW]
    if not rows:
        return
    terminalreporter.section("faults")
    for row in [("fault", "exit", "last line", "s/bound", "resume"), *rows]:
        cells = [shortened(cell, width).ljust(width) for cell, width in zip(row, WIDTHS, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())


def shortened(text: str, width: int) -> str:
    """The text in at most so many characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
